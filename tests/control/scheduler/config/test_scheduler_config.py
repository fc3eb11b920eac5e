"""KubeSchedulerConfiguration: defaults, strictness, every error at once (spec 05 §2.1)."""

from __future__ import annotations

import json

import pytest
import yaml

from control.component.errors import ConfigurationError
from control.scheduler.config.load import SchedulerSettings, load, shown
from control.scheduler.config.plugins import DEFAULT_PLUGINS

HEAD = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
KNOWN = (*DEFAULT_PLUGINS, "DefaultPreBind", "LoadAwareScheduling", "Coscheduling")
AT = {
    "PrioritySort": {"queueSort"},
    "DefaultBinder": {"bind"},
    "DefaultPreBind": {"preBind"},
    "NodeResourcesFit": {"preFilter", "filter", "score"},
    "Coscheduling": {"queueSort", "filter", "score"},
}


def implements(plugin: str, point: str) -> bool:
    return point in AT.get(plugin, {"filter"})


def loaded(body: str) -> SchedulerSettings:
    return load(HEAD + body, KNOWN, implements, promised=("Reservation",))


def errors(body: str) -> list[str]:
    with pytest.raises(ConfigurationError) as caught:
        loaded(body)
    return list(caught.value.errors)


def test_an_empty_file_is_kube_schedulers_default() -> None:
    settings = load("", KNOWN, implements)
    (profile,) = settings.profiles
    configuration = settings.configuration
    assert profile.name == "default-scheduler"
    assert profile.enabled.points["queueSort"] == ("PrioritySort",)
    assert profile.enabled.points["bind"] == ("DefaultBinder",)
    assert profile.enabled.points["preBind"] == ("DefaultPreBind",)
    assert profile.enabled.points["score"] == ("NodeResourcesFit",)
    assert (
        configuration.parallelism,
        configuration.pod_initial_backoff_seconds,
        configuration.pod_max_backoff_seconds,
    ) == (16, 1, 10)
    assert configuration.leader_election.resource_name == "kube-scheduler"
    assert str(configuration.leader_election.lease_duration) == "15s"
    assert profile.args["NodeResourcesFit"].scoring_strategy.type == "LeastAllocated"


def test_json_is_read_as_well_as_yaml() -> None:
    body = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaseDuration": "1m"},
        "profiles": [{"schedulerName": "a", "percentageOfNodesToScore": 30}],
        "percentageOfNodesToScore": 7,
    }
    settings = load(json.dumps(body), KNOWN, implements)
    assert settings.profiles[0].percentage == 30
    assert settings.configuration.leader_election.lease_duration.seconds == 60


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ("parallelism: 0", ["parallelism: Invalid value: 0: should be an integer value greater than zero"]),
        ("parallelism: lots", ['parallelism: Invalid value: "lots": must be an integer']),
        ("paralelism: 3", ['strict decoding error: unknown field "paralelism"']),
        (
            "percentageOfNodesToScore: 101",
            ["percentageOfNodesToScore: Invalid value: 101: not in valid range [0-100]"],
        ),
        ("podInitialBackoffSeconds: 0", ["podInitialBackoffSeconds: Invalid value: 0: must be greater than 0"]),
        (
            "podInitialBackoffSeconds: 20",
            ["podMaxBackoffSeconds: Invalid value: 10: must be greater than or equal to PodInitialBackoffSeconds"],
        ),
        (
            "leaderElection: {leaseDuration: 5s}",
            ['leaderElection.leaseDuration: Invalid value: "5s": LeaseDuration must be greater than RenewDeadline'],
        ),
        (
            "leaderElection: {leaseDuration: soon}",
            ["leaderElection.leaseDuration: Invalid value: \"soon\": 'soon' is not a duration"],
        ),
        (
            "leaderElection: {resourceLock: endpoints}",
            ['leaderElection.resourceLock: Unsupported value: "endpoints": supported values: "leases"'],
        ),
        (
            "profiles: [{schedulerName: a}, {schedulerName: a}]",
            ['profiles[1].schedulerName: Duplicate value: "a"'],
        ),
        ("profiles: [{schedulerName: a}, {}]", ["profiles[1].schedulerName: Required value"]),
        (
            "profiles: [{plugins: {filter: {enabled: [{name: Nonsense}]}}}]",
            ['profiles[0].plugins.filter: plugin "Nonsense" does not exist'],
        ),
        (
            "profiles: [{plugins: {filters: {}}}]",
            ['strict decoding error: unknown field "profiles[0].plugins.filters"'],
        ),
        (
            "profiles: [{plugins: {filter: {enabled: [{name: Coscheduling}, {name: Coscheduling}]}}}]",
            ['profiles[0].plugins: plugin "Coscheduling" already registered as "FilterPlugin"'],
        ),
        (
            "profiles: [{plugins: {queueSort: {disabled: [{name: '*'}]}}}]",
            [
                "profiles[0].plugins.queueSort: one queue sort plugin required for profile with scheduler name"
                ' "default-scheduler", but got 0'
            ],
        ),
        (
            "profiles: [{plugins: {queueSort: {enabled: [{name: LoadAwareScheduling}]}}}]",
            [
                "profiles[0].plugins.queueSort: one queue sort plugin required for profile with scheduler name"
                ' "default-scheduler", but got 2'
            ],
        ),
        (
            "profiles: [{plugins: {score: {enabled: [{name: NodeResourcesFit, weight: -1}]}}}]",
            ["profiles[0].plugins.score: total score of Score plugins could overflow"],
        ),
        (
            "profiles: [{plugins: {bind: {disabled: [{name: DefaultBinder}]}}}]",
            [
                "profiles[0].plugins.bind: at least one bind plugin is needed for profile with scheduler name"
                ' "default-scheduler"'
            ],
        ),
        (
            "profiles: [{schedulerName: a}, {schedulerName: b, plugins: {queueSort: {enabled: [{name: Coscheduling}],"
            " disabled: [{name: '*'}]}}}]",
            ['profiles[1].plugins.queueSort: Invalid value: ["Coscheduling"]: must match for all profiles'],
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {kind: InterPodAffinityArgs}}]}]",
            [
                "profiles[0].pluginConfig[0]: args for plugin NodeResourcesFit were not of type"
                " NodeResourcesFitArgs.kubescheduler.config.k8s.io, got InterPodAffinityArgs"
            ],
        ),
        (
            "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoreResources: []}}]}]",
            ['strict decoding error: unknown field "profiles[0].pluginConfig[0].args.ignoreResources"'],
        ),
        (
            "profiles: [{pluginConfig: [{name: InterPodAffinity}, {name: InterPodAffinity}]}]",
            ['profiles[0].pluginConfig[1]: Duplicate value: "InterPodAffinity"'],
        ),
        (
            "profiles: [{pluginConfig: [{name: InterPodAffinity, args: {hardPodAffinityWeight: 101}}]}]",
            ["profiles[0].pluginConfig[0].args.hardPodAffinityWeight: Invalid value: 101: not in valid range [0, 100]"],
        ),
        (
            "extenders: [{urlPrefix: x}]",
            ['extenders[0].urlPrefix: Invalid value: "x": must begin with http:// or https://'],
        ),
        (
            "extenders: [{urlPrefix: http://x, enableHTTPS: true, prioritizeVerb: p, preemptVerb: q, bindVerb: b},"
            " {urlPrefix: https://x, bindVerb: b, tlsConfig: {serverName: y},"
            " managedResources: [{name: cpu}, {name: a/b}, {name: a/b}]}]",
            [
                'extenders[0].urlPrefix: Invalid value: "http://x": must begin with https:// with enableHTTPS',
                "extenders[0].weight: Invalid value: 0: must have a positive weight applied to it",
                'extenders[0].preemptVerb: Invalid value: "q": this scheduler does not call extenders for preemption',
                'extenders[1].tlsConfig.serverName: Invalid value: "y": only the host name in urlPrefix is verified',
                'extenders[1].managedResources[0].name: Invalid value: "cpu": is an invalid extended resource name',
                'extenders[1].managedResources[2].name: Duplicate value: "a/b"',
                'extenders: Invalid value: "found 2 extenders implementing bind": only one extender can implement bind',
            ],
        ),
        (
            "extenders: [{urlPrefix: http://x, nodeCacheCapabel: true}]",
            ['strict decoding error: unknown field "extenders[0].nodeCacheCapabel"'],
        ),
        ("parallelism: 1\nparallelism: 2", ['yaml: line 4: key "parallelism" already set in map']),
    ],
)
def test_configuration_errors_are_reported(body: str, expected: list[str]) -> None:
    assert errors(body) == expected


def test_all_configuration_errors_are_reported_together() -> None:
    problems = errors("parallelism: -1\nbogus: 1\nprofiles: [{plugins: {score: {enabled: [{name: Odd}]}}, extra: 1}]")
    assert problems == [
        'strict decoding error: unknown field "bogus"',
        'strict decoding error: unknown field "profiles[0].extra"',
        "parallelism: Invalid value: -1: should be an integer value greater than zero",
        'profiles[0].plugins.score: plugin "Odd" does not exist',
    ]


@pytest.mark.parametrize("text", ["[]", "a: [", "kind: Pod\napiVersion: v1"], ids=["a-list", "no-yaml", "a-pod"])
def test_other_documents_are_refused(text: str) -> None:
    with pytest.raises(ConfigurationError):
        load(text, KNOWN, implements)


def test_args_may_leave_out_their_kind() -> None:
    settings = loaded(
        "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [example.com/a]}}]}]"
    )
    assert settings.profiles[0].args["NodeResourcesFit"].ignored_resources == ["example.com/a"]


def test_a_known_plugin_that_this_build_lacks_is_skipped_and_listed() -> None:
    settings = loaded("profiles: [{plugins: {filter: {enabled: [{name: Reservation}]}}}]")
    assert settings.profiles[0].left_out == ("Reservation",)
    assert "Reservation" not in settings.profiles[0].enabled.names()


def test_the_effective_configuration_can_be_loaded_again() -> None:
    settings = loaded("profiles: [{schedulerName: x, plugins: {score: {enabled: [{name: Coscheduling, weight: 7}]}}}]")
    again = load(yaml.safe_dump(shown(settings)), KNOWN, implements)
    assert again.profiles[0].enabled == settings.profiles[0].enabled
    assert again.profiles[0].args == settings.profiles[0].args
    assert shown(again) == shown(settings)


def test_resources_managed_by_extenders_can_be_ignored() -> None:
    body = (
        "extenders: [{urlPrefix: http://x, filterVerb: f, httpTimeout: 300ms, managedResources:"
        " [{name: a.b/c, ignoredByScheduler: true}, {name: a.b/d}]}]\n"
        "profiles: [{pluginConfig: [{name: NodeResourcesFit, args: {ignoredResources: [e.f/g]}}]}]"
    )
    (profile,) = loaded(body).profiles
    assert profile.args["NodeResourcesFit"].ignored_resources == ["e.f/g", "a.b/c"]

"""Names, labels and cgroup parents of dockershim."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtimeproxy.docker import names
from runtimeproxy.docker.http1 import parse_request
from runtimeproxy.docker.names import KubernetesName
from runtimeproxy.docker.routes import Route, RouteMatch, match_route

UID = "5f0d9a4e-0000-4000-8000-000000000001"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(f"k8s_POD_web-0_shop_{UID}_0", KubernetesName("POD", "web-0", "shop", UID, 0), id="sandbox"),
        pytest.param(f"/k8s_app_web-0_shop_{UID}_12", KubernetesName("app", "web-0", "shop", UID, 12), id="as-listed"),
        pytest.param(f"k8s_app_web-0_shop_{UID}_1_3f2a", KubernetesName("app", "web-0", "shop", UID, 1), id="renamed"),
        pytest.param("web", None, id="plain"),
        pytest.param("", None, id="none"),
        pytest.param("k8s_app_web-0_shop_uid", None, id="five-parts"),
        pytest.param("k8s_app_web-0_shop_uid_0_a_b", None, id="eight-parts"),
        pytest.param("k9s_app_web-0_shop_uid_0", None, id="other-prefix"),
        pytest.param("k8s_app_web-0_shop_uid_first", None, id="attempt-no-number"),
        pytest.param("k8s_app_web-0_shop_uid_-1", None, id="attempt-negative"),
        pytest.param("k8s_app_web-0_shop_uid_4294967296", None, id="attempt-too-large"),
        pytest.param("k8s_app_web-0_shop_uid_٣", None, id="attempt-in-other-digits"),
        pytest.param(f"k8s_app_web-0_shop_uid_{'1' * 5000}", None, id="attempt-without-end"),
        pytest.param("k8s_app__shop_uid_0", None, id="empty-part"),
    ],
)
def test_names(name: str, expected: KubernetesName | None) -> None:
    assert names.parse_name(name) == expected


@pytest.mark.parametrize(
    ("parent", "path"),
    [
        pytest.param(
            "kubepods-burstable-pod12_34.slice",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod12_34.slice",
            id="burstable",
        ),
        pytest.param("kubepods-pod12_34.slice", "/kubepods.slice/kubepods-pod12_34.slice", id="guaranteed"),
        pytest.param("kubepods.slice", "/kubepods.slice", id="one-slice"),
    ],
)
def test_parents_of_the_systemd_driver(parent: str, path: str) -> None:
    assert names.expand_parent(parent, "systemd") == path
    assert names.docker_parent(path, "systemd") == parent


@pytest.mark.parametrize("driver", ["cgroupfs", "none"])
@pytest.mark.parametrize("parent", ["/kubepods/burstable/pod1-2", "kubepods-pod1.slice", ""])
def test_parents_of_other_drivers_stay(parent: str, driver: str) -> None:
    assert names.expand_parent(parent, driver) == parent
    assert names.docker_parent(parent, driver) == parent


@pytest.mark.parametrize("parent", ["", "/already/a.slice", "no-slice", "-.slice", "a--b.slice", ".slice"])
def test_only_slices_are_expanded(parent: str) -> None:
    assert names.expand_parent(parent, "systemd") == parent


@given(st.lists(st.text("abcdef0123456789_", min_size=1, max_size=8), min_size=1, max_size=5))
def test_a_slice_expands_to_a_path_that_ends_in_it(words: list[str]) -> None:
    parent = "-".join(words) + ".slice"
    path = names.expand_parent(parent, "systemd")
    assert names.docker_parent(path, "systemd") == parent and path.count("/") == len(words)


def test_annotations_are_labels_with_a_prefix() -> None:
    docker = {"app": "web", "annotation.cpu": "0-3", "annotation.": "odd", names.TYPE_LABEL: "container"}
    labels, annotations = names.split_labels(docker)
    assert labels == {"app": "web", names.TYPE_LABEL: "container"} and annotations == {"cpu": "0-3", "": "odd"}


def test_answered_labels_win_and_new_ones_follow_sorted() -> None:
    docker = {"z": "1", "annotation.a": "2", "b": "3"}
    merged = names.merge_labels(docker, {"z": "9", "y": "8"}, {"a": "7", "c": "6"})
    assert list(merged.items()) == [("z", "9"), ("annotation.a", "7"), ("b", "3"), ("annotation.c", "6"), ("y", "8")]


words = st.dictionaries(st.text("abc.", max_size=4), st.text("xy", max_size=2), max_size=4)


@given(words, words)
def test_an_echo_changes_no_label(labels: dict[str, str], annotations: dict[str, str]) -> None:
    docker = names.merge_labels({}, labels, annotations)
    assert names.merge_labels(docker, *names.split_labels(docker)) == docker


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        pytest.param("POST /containers/create?name=k8s_a", RouteMatch(Route.CREATE, "k8s_a"), id="create"),
        pytest.param("POST /v1.41/containers/create", RouteMatch(Route.CREATE, ""), id="create-unnamed"),
        pytest.param(
            "PUT /v1.41/containers/create?x=1&name=a%5Fb", RouteMatch(Route.CREATE, "a_b"), id="create-any-method"
        ),
        pytest.param("POST /v1.40/containers/abc/start", RouteMatch(Route.START, "abc"), id="start"),
        pytest.param("POST /containers/abc/stop?t=10", RouteMatch(Route.STOP, "abc"), id="stop"),
        pytest.param("POST /containers/a%62c/update", RouteMatch(Route.UPDATE, "abc"), id="update"),
        pytest.param("POST http://docker/v1.40/containers/abc/start", RouteMatch(Route.START, "abc"), id="absolute"),
        pytest.param("POST /containers/create/start", RouteMatch(Route.START, "create"), id="container-named-create"),
        pytest.param("DELETE /v1.40/containers/abc?force=1", RouteMatch(Route.REMOVE, "abc"), id="remove"),
        pytest.param("GET /containers/abc", None, id="nothing-to-get"),
        pytest.param("GET /containers/json?all=1", None, id="list"),
        pytest.param("POST /containers/abc/attach?stream=1", None, id="attach"),
        pytest.param("POST /containers/abc/restart", None, id="restart"),
        pytest.param("POST /exec/abc/start", None, id="exec"),
        pytest.param("POST /images/containers/abc/start", None, id="elsewhere"),
        pytest.param("POST /v1/containers/abc/start", None, id="no-version"),
        pytest.param("OPTIONS *", None, id="star"),
    ],
)
def test_routes(line: str, expected: RouteMatch | None) -> None:
    assert match_route(parse_request(f"{line} HTTP/1.1\r\n\r\n".encode())) == expected

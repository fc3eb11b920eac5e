"""The field tables of spec 01 §3: the exact content of every CRD schema.

One line a field: path, type, then `*` (required), `=value` (default), `|` separated enum in `<>`,
`lo..hi` (bounds), `null` (nullable). Types: str bool int int32 qty dur time ios (int or string) obj
keep (an object whose members are all kept) map (of strings) qtys (map of quantities), `[]` behind a
type for lists; a name in capitals is one of the shared tables below.
"""

SHARED = {
    "REF": """
        apiVersion str
        fieldPath str
        kind str
        name str
        namespace str
        resourceVersion str
        uid str
    """,
    "SELECTOR": """
        matchLabels map
        matchExpressions obj[]
        matchExpressions.key str *
        matchExpressions.operator str *
        matchExpressions.values str[]
    """,
    "CONDITION": """
        type str *
        status str * <True|False|Unknown>
        reason str *
        message str *
        lastTransitionTime time *
        observedGeneration int 0..
    """,
    "DEVICE": """
        type str
        labels map
        id str
        minor int32
        moduleID int32
        health bool * =false
        resources qtys
        topology obj
        topology.socketID int32 *
        topology.nodeID int32 *
        topology.pcieID str *
        topology.busID str
        vfGroups obj[]
        vfGroups.labels map
        vfGroups.vfs obj[]
        vfGroups.vfs.minor int32 *
        vfGroups.vfs.busID str
        conditions CONDITION[]
    """,
    "USAGE": """
        resources qtys
        devices DEVICE[]
    """,
    "EXPLANATION": """
        schedulable bool
        failedMessage str
        feasibleSchedulingResult obj[]
        feasibleSchedulingResult.namespace str
        feasibleSchedulingResult.name str
        feasibleSchedulingResult.uid str
        feasibleSchedulingResult.nodeName str
        nodeFailedDetails obj[]
        nodeFailedDetails.failedPlugin str
        nodeFailedDetails.reason str
        nodeFailedDetails.preemptMightHelp bool
        nodeFailedDetails.failedNodes str[]
    """,
    "DELETE": """
        kind str
        apiVersion str
        gracePeriodSeconds int
        preconditions obj
        preconditions.uid str
        preconditions.resourceVersion str
        orphanDependents bool
        propagationPolicy str
        dryRun str[]
        ignoreStoreReadErrorWithClusterBreakingPotential bool
    """,
    "NETWORK": """
        enable bool
        ingressRequest ios =0
        ingressLimit ios =100
        egressRequest ios =0
        egressLimit ios =100
    """,
    "CLASS": """
        cpuQOS obj
        cpuQOS.enable bool
        cpuQOS.groupIdentity int
        cpuQOS.schedIdle int
        cpuQOS.coreExpeller bool
        memoryQOS obj
        memoryQOS.enable bool
        memoryQOS.minLimitPercent int 0..
        memoryQOS.lowLimitPercent int 0..
        memoryQOS.throttlingPercent int 0..
        memoryQOS.wmarkRatio int 0..100
        memoryQOS.wmarkScalePermill int 1..1000
        memoryQOS.wmarkMinAdj int -25..50
        memoryQOS.priorityEnable int
        memoryQOS.priority int
        memoryQOS.oomKillGroup int
        memoryQOS.pageCacheEnable bool
        memoryQOS.pageCacheLimitPercent int 0..100
        memoryQOS.pageCacheLimitSize int
        memoryQOS.pageCacheReclaimSync bool
        blkioQOS obj
        blkioQOS.enable bool
        blkioQOS.blocks obj[]
        blkioQOS.blocks.name str
        blkioQOS.blocks.type str
        blkioQOS.blocks.ioCfg obj
        blkioQOS.blocks.ioCfg.readIOPS int 0..
        blkioQOS.blocks.ioCfg.writeIOPS int 0..
        blkioQOS.blocks.ioCfg.readBPS int 0..
        blkioQOS.blocks.ioCfg.writeBPS int 0..
        blkioQOS.blocks.ioCfg.ioWeightPercent int 1..100
        blkioQOS.blocks.ioCfg.readLatency int
        blkioQOS.blocks.ioCfg.writeLatency int
        blkioQOS.blocks.ioCfg.readLatencyPercent int 0..100
        blkioQOS.blocks.ioCfg.writeLatencyPercent int 0..100
        blkioQOS.blocks.ioCfg.enableUserModel bool
        blkioQOS.blocks.ioCfg.modelReadBPS int 1..
        blkioQOS.blocks.ioCfg.modelWriteBPS int 1..
        blkioQOS.blocks.ioCfg.modelReadSeqIOPS int 1..
        blkioQOS.blocks.ioCfg.modelWriteSeqIOPS int 1..
        blkioQOS.blocks.ioCfg.modelReadRandIOPS int 1..
        blkioQOS.blocks.ioCfg.modelWriteRandIOPS int 1..
        resctrlQOS obj
        resctrlQOS.enable bool
        resctrlQOS.catRangeStartPercent int 0..100
        resctrlQOS.catRangeEndPercent int 0..100
        resctrlQOS.mbaPercent int 0..100
        networkQOS NETWORK
    """,
    "ZONE": """
        name str *
        type str *
        parent str
        costs obj[]
        costs.name str *
        costs.value int *
        attributes obj[]
        attributes.name str *
        attributes.value str *
        resources obj[]
        resources.name str *
        resources.capacity qty *
        resources.allocatable qty *
        resources.available qty *
    """,
}

KINDS = {
    "NodeMetric": """
        spec obj
        spec.metricCollectPolicy obj
        spec.metricCollectPolicy.aggregateDurationSeconds int
        spec.metricCollectPolicy.reportIntervalSeconds int
        spec.metricCollectPolicy.nodeAggregatePolicy obj
        spec.metricCollectPolicy.nodeAggregatePolicy.durations dur[]
        spec.metricCollectPolicy.nodeMemoryCollectPolicy str \
            <usageWithHotPageCache|usageWithoutPageCache|usageWithPageCache>
        spec.predictPolicy obj
        spec.predictPolicy.resourceDiffThresholdPercent int 0..
        spec.predictPolicy.coldStartPeriodSeconds int 0..
        status obj
        status.updateTime time
        status.nodeMetric obj
        status.nodeMetric.nodeUsage USAGE
        status.nodeMetric.aggregatedNodeUsages obj[]
        status.nodeMetric.aggregatedNodeUsages.usage USAGE{}
        status.nodeMetric.aggregatedNodeUsages.duration dur
        status.nodeMetric.systemUsage USAGE
        status.nodeMetric.aggregatedSystemUsages obj[]
        status.nodeMetric.aggregatedSystemUsages.usage USAGE{}
        status.nodeMetric.aggregatedSystemUsages.duration dur
        status.nodeMetric.numaUsages obj[]
        status.nodeMetric.numaUsages.numaNodeID int32 *
        status.nodeMetric.numaUsages.nodeUsage USAGE
        status.nodeMetric.numaUsages.systemUsage USAGE
        status.podsMetric obj[]
        status.podsMetric.name str
        status.podsMetric.namespace str
        status.podsMetric.podUsage USAGE
        status.podsMetric.priority str
        status.podsMetric.qos str
        status.podsMetric.extensions keep
        status.hostApplicationMetric obj[]
        status.hostApplicationMetric.name str
        status.hostApplicationMetric.usage USAGE
        status.hostApplicationMetric.priority str
        status.hostApplicationMetric.qos str
        status.prodReclaimableMetric obj
        status.prodReclaimableMetric.resource USAGE
        status.prodPeakMetric obj
        status.prodPeakMetric.resource USAGE
        status.extensions keep
    """,
    "NodeSLO": """
        spec obj
        spec.resourceUsedThresholdWithBE obj
        spec.resourceUsedThresholdWithBE.enable bool
        spec.resourceUsedThresholdWithBE.cpuSuppressThresholdPercent int 0..100
        spec.resourceUsedThresholdWithBE.cpuSuppressMinPercent int 0..100
        spec.resourceUsedThresholdWithBE.cpuSuppressPolicy str
        spec.resourceUsedThresholdWithBE.memoryEvictThresholdPercent int 0..100
        spec.resourceUsedThresholdWithBE.memoryEvictLowerPercent int 0..100
        spec.resourceUsedThresholdWithBE.memoryAllocatableEvictThresholdPercent int 0..
        spec.resourceUsedThresholdWithBE.memoryAllocatableEvictLowerPercent int 0..
        spec.resourceUsedThresholdWithBE.cpuEvictBESatisfactionUpperPercent int
        spec.resourceUsedThresholdWithBE.cpuEvictBESatisfactionLowerPercent int
        spec.resourceUsedThresholdWithBE.cpuEvictBEUsageThresholdPercent int
        spec.resourceUsedThresholdWithBE.cpuEvictTimeWindowSeconds int
        spec.resourceUsedThresholdWithBE.cpuEvictThresholdPercent int 0..100
        spec.resourceUsedThresholdWithBE.cpuEvictLowerPercent int 0..100
        spec.resourceUsedThresholdWithBE.cpuAllocatableEvictThresholdPercent int 0..
        spec.resourceUsedThresholdWithBE.cpuAllocatableEvictLowerPercent int 0..
        spec.resourceUsedThresholdWithBE.cpuEvictPolicy str
        spec.resourceUsedThresholdWithBE.evictEnabledPriorityThreshold int32
        spec.resourceUsedThresholdWithBE.allocatableEvictPriorityThreshold int32
        spec.resourceQOSStrategy obj
        spec.resourceQOSStrategy.policies obj
        spec.resourceQOSStrategy.policies.cpuPolicy str
        spec.resourceQOSStrategy.policies.netQOSPolicy str
        spec.resourceQOSStrategy.lsrClass CLASS
        spec.resourceQOSStrategy.lsClass CLASS
        spec.resourceQOSStrategy.beClass CLASS
        spec.resourceQOSStrategy.systemClass CLASS
        spec.resourceQOSStrategy.cgroupRoot CLASS
        spec.cpuBurstStrategy obj
        spec.cpuBurstStrategy.policy str
        spec.cpuBurstStrategy.cpuBurstPercent int 0..10000
        spec.cpuBurstStrategy.cfsQuotaBurstPercent int
        spec.cpuBurstStrategy.cfsQuotaBurstPeriodSeconds int
        spec.cpuBurstStrategy.sharePoolThresholdPercent int
        spec.systemStrategy obj
        spec.systemStrategy.minFreeKbytesFactor int
        spec.systemStrategy.watermarkScaleFactor int
        spec.systemStrategy.memcgReapBackGround int
        spec.systemStrategy.schedGroupIdentityEnabled int
        spec.systemStrategy.schedIdleSaverWmark int
        spec.systemStrategy.schedFeatures bools
        spec.systemStrategy.pageCacheLimitEnabled int
        spec.systemStrategy.totalNetworkBandwidth qty
        spec.extensions keep
        spec.hostApplications obj[]
        spec.hostApplications.name str
        spec.hostApplications.priority str
        spec.hostApplications.qos str
        spec.hostApplications.cgroupPath obj
        spec.hostApplications.cgroupPath.base str
        spec.hostApplications.cgroupPath.parentDir str
        spec.hostApplications.cgroupPath.relativePath str
        spec.hostApplications.strategy obj
        status obj
    """,
    "Reservation": """
        spec obj
        spec.template keep *
        spec.owners obj[] *
        spec.owners.object REF
        spec.owners.controller obj
        spec.owners.controller.apiVersion str *
        spec.owners.controller.kind str *
        spec.owners.controller.name str *
        spec.owners.controller.uid str *
        spec.owners.controller.controller bool
        spec.owners.controller.blockOwnerDeletion bool
        spec.owners.controller.namespace str
        spec.owners.labelSelector SELECTOR
        spec.ttl dur =24h
        spec.expires time
        spec.preAllocation bool
        spec.preAllocationPolicy obj
        spec.preAllocationPolicy.mode str <Default|Cluster> =Default
        spec.preAllocationPolicy.enableMultiple bool =false
        spec.allocateOnce bool =true
        spec.allocatePolicy str <Aligned|Restricted>
        spec.unschedulable bool
        spec.taints obj[]
        spec.taints.key str *
        spec.taints.value str
        spec.taints.effect str *
        spec.taints.timeAdded time
        status obj
        status.phase str =Pending
        status.conditions obj[]
        status.conditions.type str
        status.conditions.status str
        status.conditions.reason str
        status.conditions.message str
        status.conditions.lastProbeTime time null
        status.conditions.lastTransitionTime time null
        status.currentOwners REF[]
        status.nodeName str
        status.allocatable qtys
        status.allocated qtys
    """,
    "Device": """
        spec obj
        spec.devices DEVICE[]
        status obj
        status.allocations obj[]
        status.allocations.type str
        status.allocations.entries obj[]
        status.allocations.entries.name str
        status.allocations.entries.namespace str
        status.allocations.entries.uuid str
        status.allocations.entries.minors int32[]
    """,
    "PodMigrationJob": """
        spec obj
        spec.paused bool
        spec.ttl dur
        spec.mode str
        spec.podRef REF *
        spec.reservationOptions obj
        spec.reservationOptions.reservationRef REF
        spec.reservationOptions.template keep
        spec.reservationOptions.preemptionOptions obj
        spec.deleteOptions DELETE
        status obj
        status.phase str
        status.status str
        status.reason str
        status.message str
        status.conditions obj[]
        status.conditions.type str *
        status.conditions.status str *
        status.conditions.lastProbeTime time null
        status.conditions.lastTransitionTime time null
        status.conditions.reason str
        status.conditions.message str
        status.nodeName str
        status.podRef REF
        status.preemptedPodsRef REF[]
        status.preemptedPodsReservation obj[]
        status.preemptedPodsReservation.namespace str
        status.preemptedPodsReservation.name str
        status.preemptedPodsReservation.nodeName str
        status.preemptedPodsReservation.phase str
        status.preemptedPodsReservation.preemptedPodRef REF
        status.preemptedPodsReservation.podsRef REF[]
    """,
    "DrainNode": """
        spec obj
        spec.nodeName str *
        spec.ttl dur
        spec.cordonPolicy obj
        spec.cordonPolicy.mode str * <Taint|Label>
        spec.cordonPolicy.labels map
        spec.migrationPolicy obj
        spec.migrationPolicy.mode str =WaitFirst <WaitFirst|MigrateDirectly>
        spec.migrationPolicy.waitDuration dur
        spec.migrationPolicy.jobMode str
        spec.confirmState str =WaitForConfirm <WaitForConfirm|Confirmed|Rejected|Aborted>
        status obj
        status.phase str
        status.message str
        status.podMigrations obj[]
        status.podMigrations.uid str *
        status.podMigrations.namespace str
        status.podMigrations.podName str
        status.podMigrations.phase str
        status.podMigrations.message str
        status.podMigrations.startTimestamp time null
        status.podMigrations.chartedAfterDrainNodeConfirmed bool
        status.podMigrations.reservationName str
        status.podMigrations.reservationPhase str
        status.podMigrations.targetNode str
        status.podMigrations.podMigrationJobName str
        status.podMigrations.podMigrationJobPaused bool
        status.podMigrations.podMigrationJobPhase str
        status.podMigrationSummary int{}
        status.conditions obj[]
        status.conditions.type str *
        status.conditions.status str *
        status.conditions.lastTransitionTime time null
        status.conditions.reason str
        status.conditions.message str
    """,
    "DrainNodeGroup": """
        spec obj
        spec.nodeSelector SELECTOR *
        spec.ttl dur
        spec.cordonNodePolicy obj
        spec.cordonNodePolicy.mode str * <Taint|Label>
        spec.cordonNodePolicy.labels map
        spec.executionPolicy obj
        spec.executionPolicy.partition int 0..
        spec.executionPolicy.paused bool
        spec.terminationPolicy obj
        spec.terminationPolicy.maxNodeCount int 0..
        spec.terminationPolicy.percentageOfResourceReserved int 1..100
        status obj
        status.phase str
        status.message str
        status.total int
        status.unavailable int
        status.available int
        status.running int
        status.succeeded int
        status.failed int
    """,
    "Queue": """
        spec obj
        spec.queuePolicy str <FIFO|Priority>
        spec.blocking bool
        spec.priority int32
        spec.priorityClassName str
        spec.admissionChecks obj[]
        spec.admissionChecks.name str *
        spec.admissionChecks.labelSelector SELECTOR
        status obj
        status.queueItemDetails obj[]{}
        status.queueItemDetails.name str *
        status.queueItemDetails.namespace str *
        status.queueItemDetails.priority int32
        status.queueItemDetails.position int32
    """,
    "QueueUnit": """
        spec obj
        spec.consumerRef REF
        spec.priority int32
        spec.priorityClassName str
        spec.queue str
        spec.podSets obj[]
        spec.podSets.name str *
        spec.podSets.count int32 0..
        spec.podSets.request qtys
        spec.request qtys
        status obj
        status.phase str
        status.attempts int32
        status.message str
        status.lastUpdateTime time
        status.admissionChecks obj[]
        status.admissionChecks.name str *
        status.admissionChecks.state str
        status.admissionChecks.message str
        status.admissions obj[]
        status.admissions.name str *
        status.admissions.replicas int32
        status.admissions.resources qtys
        status.admissions.running int32
        status.admissions.reclaimState str
        status.lastAllocateTime time
        status.quota str
    """,
    "ClusterColocationProfile": """
        spec obj
        spec.namespaceSelector SELECTOR
        spec.selector SELECTOR
        spec.probability ios
        spec.labels map
        spec.annotations map
        spec.labelKeysMapping map
        spec.annotationKeysMapping map
        spec.labelSuffixes map
        spec.schedulerName str
        spec.qosClass str <LSE|LSR|LS|BE|SYSTEM>
        spec.priorityClassName str
        spec.koordinatorPriority int32
        spec.patch keep
        status obj
    """,
    "ElasticQuota": """
        spec obj
        spec.min qtys
        spec.max qtys
        status obj
        status.used qtys
    """,
    "ElasticQuotaProfile": """
        spec obj
        spec.quotaName str *
        spec.quotaLabels map
        spec.resourceRatio str
        spec.nodeSelector SELECTOR *
        status obj
    """,
    "PodGroup": """
        spec obj
        spec.minMember int32
        spec.minResources qtys
        spec.scheduleTimeoutSeconds int32
        status obj
        status.phase str
        status.occupiedBy str
        status.scheduled int32
        status.running int32
        status.succeeded int32
        status.failed int32
        status.scheduleStartTime time
    """,
    "NodeResourceTopology/v1alpha1": """
        topologyPolicies str[] *
        zones ZONE[] *
    """,
    "NodeResourceTopology/v1alpha2": """
        topologyPolicies str[]
        zones ZONE[] *
        attributes obj[]
        attributes.name str *
        attributes.value str *
    """,
    "ClusterNetworkTopology": """
        spec obj
        spec.networkTopologySpec obj[] *
        spec.networkTopologySpec.topologyLayer str *
        spec.networkTopologySpec.parentTopologyLayer str
        spec.networkTopologySpec.labelKey str[]
        status obj
        status.detailStatus obj[]
        status.detailStatus.topologyInfo obj *
        status.detailStatus.topologyInfo.topologyLayer str
        status.detailStatus.topologyInfo.topologyName str
        status.detailStatus.parentTopologyInfo obj
        status.detailStatus.parentTopologyInfo.topologyLayer str
        status.detailStatus.parentTopologyInfo.topologyName str
        status.detailStatus.childTopologyLayer str
        status.detailStatus.childTopologyNames str[]
        status.detailStatus.nodeNum int32 *
    """,
    "Recommendation": """
        spec obj
        spec.target obj *
        spec.target.type str *
        spec.target.workload obj
        spec.target.workload.kind str *
        spec.target.workload.name str *
        spec.target.workload.apiVersion str
        spec.target.podSelector SELECTOR
        status obj
        status.podStatus obj
        status.podStatus.containerStatuses obj[]
        status.podStatus.containerStatuses.containerName str
        status.podStatus.containerStatuses.resources qtys
        status.updateTime time
        status.conditions CONDITION[]
        status.explain obj[]
        status.explain.containerName str
        status.explain.samples int 0..
        status.explain.confidencePercent int 0..100
        status.explain.lowerBound qtys
        status.explain.upperBound qtys
        status.explain.message str
        status.checkpoint obj[]
        status.checkpoint.containerName str
        status.checkpoint.samples int 0..
        status.checkpoint.firstSampleTime time
        status.checkpoint.lastSampleTime time
        status.checkpoint.cpu obj
        status.checkpoint.cpu.referenceTimestamp time
        status.checkpoint.cpu.bucketWeights int{}
        status.checkpoint.cpu.totalWeight num
        status.checkpoint.memory obj
        status.checkpoint.memory.referenceTimestamp time
        status.checkpoint.memory.bucketWeights int{}
        status.checkpoint.memory.totalWeight num
        status.checkpoint.oomKills int 0..
        status.checkpoint.oomMemory qty
        status.checkpoint.oomTime time
    """,
    "ScheduleExplanation": """
        spec obj
        spec.questionObjectKey str
        spec.questionObjectTemplate keep
        spec.ttl dur =24h
        status obj
        status.schedulable bool
        status.schedulableAfterPreemption bool
        status.failedMessage str
        status.lastUpdateTime time
        status.detailedExplanation obj[]
        status.detailedExplanation.topologyDomain str
        status.detailedExplanation.schedulable bool
        status.detailedExplanation.schedulableAfterPreemption bool
        status.detailedExplanation.failedMessage str
        status.detailedExplanation.scheduleExplanation EXPLANATION
        status.detailedExplanation.nodePossibleVictims obj[]
        status.detailedExplanation.nodePossibleVictims.nodeName str
        status.detailedExplanation.nodePossibleVictims.possibleVictims obj[]
        status.detailedExplanation.nodePossibleVictims.possibleVictims.namespace str
        status.detailedExplanation.nodePossibleVictims.possibleVictims.name str
        status.detailedExplanation.nodePossibleVictims.possibleVictims.uid str
        status.detailedExplanation.nodePossibleVictims.possibleVictims.isNominatedPod bool
        status.detailedExplanation.preemptExplanation EXPLANATION
    """,
}


def rows(text: str) -> dict[str, str]:
    """Path -> the rest of the line, with shared tables spelled out below the fields that use them."""
    out: dict[str, str] = {}
    for line in text.strip().splitlines():
        path, kind, *notes = line.split()
        name = kind.rstrip("[]{}")
        suffix = kind[len(name) :]
        if name in SHARED:
            out[path] = " ".join([{"": "obj", "[]": "obj[]", "{}": "obj{}"}[suffix], *notes])
            out.update({f"{path}.{below}": rest for below, rest in rows(SHARED[name]).items()})
        else:
            out[path] = " ".join([kind, *notes])
    return out

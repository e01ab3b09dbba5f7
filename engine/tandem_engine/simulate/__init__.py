"""The scheduler, replicas and fleets under a virtual clock; only the time of a step is made up.

Pure: no clock, no chance of its own (callers pass seeded `RandomNumbers`), no framework.

    machines           prices of steps, noise
    workload           requests and when they arrive; load_profile: loads of a fleet
    scheduler_replica  a replica: the production Scheduler and BlockPool, step by step
    token_counter      what stands for a model
    drafts             what stands for n-grams and a draft model
    simulator          one load on one such replica
    fluid_replicas     replicas as flows, for fleets and days that are too many steps
    predictions        what replicas predict of themselves
    capacity_search    the highest rate that a replica carries: one such replica a rate
    capacity_meter     when a simulated replica has it searched
    router             the router's policy
    fleet              replicas behind the router, their starts and ends, and a controller
"""

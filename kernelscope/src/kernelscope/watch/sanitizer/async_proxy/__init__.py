"""Rules of the asynchronous proxy: bulk copies (TMA), products of warp groups, their mbarriers.

Start with proxy, which hands each event to the rules: tiles judges shared memory, global_copies
global memory, phases mbarriers, sums the registers of products (its plan is made by value_flow),
gatherings who takes part. operations holds what is under way, fences who has fenced when.
"""

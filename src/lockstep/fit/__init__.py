"""What a worker will need: a lane is measured in a process of its own, formulas do the rest.

lane_meter    memory now and at its peak              lane_facts      what was measured: the formulas' input
measuring     runs a lane and measures it             need            bytes of a worker, by what they are for
apart         starts that in a process of its own     formulas, stage_formulas  by strategy (pure)
fit_table     for a terminal, and as JSON             predicting      of a run, by its spec (pure)
                                                      choosing        what fits, and the cheapest way (pure)
"""

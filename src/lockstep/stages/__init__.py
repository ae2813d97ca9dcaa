"""A model cut into stages: its layers, where it is cut, who holds what, what passes between stages, and in what order.

calls       what a model's forward calls, and does between            together     which layers stay together
chain       the layers of a model, in the order of their calls        layer_costs  what each layer takes, measured
cuts        where to cut (pure)                                       ownership    which stage holds which tensor (pure)
actions     which lane goes forward or backward when (pure)           values       what passes, as bytes
same_result whether layers do what forward does                       usage        which tensors are used
transfer    values and gradients between neighbours                   stage_model  the model as a loss function sees it
"""

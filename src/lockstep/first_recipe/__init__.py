"""`lockstep init`: a first recipe, empty or from a training script, which is read as text: `training_script.py`."""

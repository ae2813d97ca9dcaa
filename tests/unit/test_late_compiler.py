"""torch's compiler is imported when something compiles, and not before; then it is the real one everywhere."""

from __future__ import annotations

from tests.unit.test_process_wide import run

START = """
import sys, torch, inspect
from lockstep.torch_compat.late_compiler import LateCompiler, import_compiler
from lockstep.train.compiler_import import delay_compiler
def there():
    return not isinstance(sys.modules["torch._dynamo"], LateCompiler)
print(delay_compiler(), delay_compiler())
weight = torch.nn.Parameter(torch.ones(3))
def train(kind):
    optimizer = kind([weight], lr=0.1)
    weight.grad = torch.ones(3)
    optimizer.step()
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
    optimizer.load_state_dict(optimizer.state_dict())
    optimizer.zero_grad()
    return optimizer
"""


def test_training_does_not_need_it() -> None:
    code = """
for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adagrad, torch.optim.RMSprop):
    torch.optim.lr_scheduler.CosineAnnealingLR(train(kind), T_max=4).step()
inspect.getmodule(train)  # looks at every module
print(there(), "torch._dynamo.eval_frame" in sys.modules)
"""
    assert run(START + code) == "True True\nFalse False"


def test_what_compiles_gets_it_and_what_was_made_before_goes_on() -> None:
    code = """
optimizer = train(torch.optim.SGD)
double = torch.compile(lambda values: 2 * values, backend="eager")
print(double(torch.ones(2)).tolist(), there(), torch._dynamo is sys.modules["torch._dynamo"])
weight.grad = torch.ones(3)
optimizer.step()
optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(2))]})
print(len(train(torch.optim.AdamW).param_groups), delay_compiler())
"""
    assert run(START + code) == "True True\n[2.0, 2.0] True True\n2 False"


def test_a_module_within_it_gets_it() -> None:
    code = "from torch._dynamo.utils import counters\nprint(there(), isinstance(counters, dict))"
    assert run(START + code) == "True True\nTrue True"


def test_it_can_be_asked_for() -> None:
    assert run(f"{START}import_compiler()\nprint(there())") == "True True\nTrue"


def test_it_is_left_alone() -> None:
    assert run(f"{START}train(torch.optim.SGD)\nprint(there())", leave="compiler") == "False False\nTrue"

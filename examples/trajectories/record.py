"""Makes the recordings beside this file, with the agents' own programs. Needs mini-swe-agent 2.4 and Harbor 0.9.

    python3 record.py mini-swe-agent roman.traj.json
    python3 record.py harbor roman.traj.json roman.atif.json

The first runs mini-swe-agent, in an empty directory, with a model that answers from a list: agent, shell, outcomes and
times are real, the thoughts and the pauses before them are not. The second has Harbor convert what the first wrote.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time
from pathlib import Path

PAUSE_S = 0.4
ANSWERS = [
    ("Where am I?", "pwd; ls -la; python3 --version"),
    ("There is nothing yet. I begin with the module.", """\
cat > roman.py <<'EOF'
VALUES = {"M": 1000, "D": 500, "C": 100, "L": 50, "X": 10, "V": 5, "I": 1}


def to_int(text):
    total = 0
    for here, after in zip(text, text[1:] + "I"):
        if VALUES[here] < VALUES[after]:
            total -= VALUES[here]
        total += VALUES[here]
    return total
EOF"""),
    ("And its tests.", """\
cat > test_roman.py <<'EOF'
import unittest

from roman import to_int


class Roman(unittest.TestCase):
    def test_sums(self):
        self.assertEqual(to_int("MMXVI"), 2016)

    def test_differences(self):
        self.assertEqual(to_int("MCMXCIV"), 1994)


if __name__ == "__main__":
    unittest.main()
EOF"""),
    ("Do they pass?", "python3 -m unittest -v test_roman"),
    ("One fails. I look at the loop.", "grep -n 'total' roman.py && sed -n '4,11p' roman.py"),
    ("What does it give?", "python3 -c \"import roman; print([roman.to_int(t) for t in ('IV', 'IX', 'XL')])\""),
    ("The value is taken away and then added again: one branch has to be the other's `else`.", """\
python3 - <<'EOF'
from pathlib import Path

path = Path("roman.py")
wrong = "            total -= VALUES[here]\\n        total += VALUES[here]\\n"
right = "            total -= VALUES[here]\\n        else:\\n            total += VALUES[here]\\n"
source = path.read_text()
assert source.count(wrong) == 1
path.write_text(source.replace(wrong, right))
EOF"""),
    ("Once more.", "python3 -m unittest -v test_roman"),
    ("Is there another place like it?", "grep -rn 'VALUES' --include='*.py' . | grep -v '^./roman.py'"),
    ("No. A last look at the result.", "cat roman.py && wc -l roman.py test_roman.py"),
    ("Everything is tidy.", "rm -rf __pycache__ && ls"),
    ("Done.", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"),
]  # fmt: skip


def record(target: Path) -> None:
    """Run mini-swe-agent and keep its trajectory."""
    from minisweagent.agents.default import DefaultAgent
    from minisweagent.environments.local import LocalEnvironment
    from minisweagent.models.test_models import DeterministicToolcallModel, make_toolcall_output

    class FromAList(DeterministicToolcallModel):
        def query(self, messages, **kwargs):  # type: ignore[no-untyped-def]
            time.sleep(PAUSE_S)
            number = sum(message["role"] == "assistant" for message in messages)
            thought, line = ANSWERS[number]
            called = f"call_{number + 1}"
            function = {"name": "bash", "arguments": json.dumps({"command": line})}
            call = {"id": called, "type": "function", "function": function}
            return make_toolcall_output(thought, [call], [{"command": line, "tool_call_id": called}])

    target = target.absolute()
    with tempfile.TemporaryDirectory() as directory:
        os.chdir(directory)
        agent = DefaultAgent(
            FromAList(outputs=[]),
            LocalEnvironment(),
            system_template="You are a helpful assistant that can interact with a computer.",
            instance_template="{{task}}",
            cost_limit=0.0,
        )
        agent.run("Write roman.py, with a function to_int that reads Roman numerals, and tests for it.")
        os.chdir("/")
    agent.save(target)


def convert(source: Path, target: Path) -> None:
    """Have Harbor write the trajectory as ATIF."""
    from harbor.agents.installed.mini_swe_agent import convert_and_save_trajectory

    convert_and_save_trajectory(source, target, session_id="roman")


if __name__ == "__main__":
    what, *paths = sys.argv[1:]
    {"mini-swe-agent": record, "harbor": convert}[what](*map(Path, paths))

"""Statistics are what a server exports as counters, so no sum may go down, whatever happens to a request.

Written against vllm-project/vllm-ascend PR 6921, 6973 and 7163, where rolling work back gave a counter a negative step.
"""

from collections import Counter
from copy import deepcopy
from dataclasses import fields

from engine_helpers import decoder, engine

from outrider.core.params import SamplingParams
from outrider.drafters.ngram import NgramDrafter
from outrider.engine.stats import SpecStats


def test_no_sum_ever_goes_down() -> None:
    tight = engine(decoder(), [NgramDrafter(4, 1)], cache_tokens=128, max_running=4)
    requests = [tight.submit([1, 2, 3, 1, 2, 3 + n], SamplingParams(max_tokens=60))[0] for n in range(4)]
    before, num_preempted, num_steps = SpecStats(), 0, 0
    while tight.num_unfinished:
        if num_steps == 6:
            tight.abort(requests[0])
        tight.step()
        num_steps += 1
        num_preempted += len(tight.scheduler.preempted)
        for name in (field.name for field in fields(SpecStats)):
            was, now = getattr(before, name), getattr(tight.stats, name)
            assert all(now[key] >= was[key] for key in was) if isinstance(was, Counter) else now >= was
        before = deepcopy(tight.stats)
    assert num_preempted > 0
    assert before.rejected > 0
    assert before.emitted > 180

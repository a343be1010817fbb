import pytest

from outrider.cache.slots import Slots, check_nodes
from outrider.errors import CacheFullError


def test_a_slot_grows_by_whole_blocks_within_the_budget():
    slots = Slots(max_tokens=40, block_rows=16)  # three blocks
    first, second = slots.acquire(), slots.acquire()
    slots.reserve(first, 17)
    assert slots.reserved(first) == 32
    slots.reserve(second, 16)
    with pytest.raises(CacheFullError, match=r"16 rows in slot 1.*\.$"):
        slots.reserve(second, 17)
    assert slots.reserved(second) == 16
    slots.reserve(first, 3)
    assert slots.reserved(first) == 32  # a reservation never shrinks
    slots.release(first)
    slots.reserve(second, 48)
    slots.check_integrity()
    assert slots.reserved_rows == 48


def test_lengths_are_absolute():
    slots = Slots()
    slot = slots.acquire()
    slots.reserve(slot, 10)
    slots.extend(slot, 10)
    slots.truncate(slot, 4)
    assert slots.length(slot) == 4
    for wrong in (5, -1):
        with pytest.raises(ValueError, match="cannot keep"):
            slots.truncate(slot, wrong)
    with pytest.raises(CacheFullError):
        slots.extend(slot, 17)


def test_slots_are_given_lowest_first_and_only_while_taken():
    slots = Slots()
    assert [slots.acquire() for _ in range(3)] == [0, 1, 2]
    slots.release(1)
    slots.release(0)
    assert slots.in_use == (2,)
    assert [slots.acquire() for _ in range(3)] == [0, 1, 3]
    slots.check_integrity()
    with pytest.raises(ValueError, match="not in use"):
        slots.length(9)


def test_integrity_notices_damage():
    slots = Slots()
    slot = slots.acquire()
    slots._lengths[slot] = 5
    with pytest.raises(RuntimeError, match="holds 5 of 0"):
        slots.check_integrity()
    slots._lengths[slot] = 0
    slots._free.append(slot)
    with pytest.raises(RuntimeError, match="both free and taken"):
        slots.check_integrity()


@pytest.mark.parametrize("nodes", [[1, 0], [0, 0], [-1], [3]])
def test_nodes_to_keep_ascend_within_the_rows(nodes):
    with pytest.raises(ValueError, match="nodes to keep"):
        check_nodes(nodes, 3)


def test_a_block_has_rows():
    with pytest.raises(ValueError, match="block_rows"):
        Slots(block_rows=0)

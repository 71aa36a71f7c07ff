"""Questions for many nodes: shared out, taken back, doubted. Pure."""

import random

from hypothesis import given, settings
from hypothesis import strategies as st

from clusterctl.manifests.work_queue import MAX_MISTAKES, WorkQueue


def question(number: int) -> dict:
    return {"id": number, "path": f"{number}.mp4"}


def handout(count: int, **rooms: int) -> WorkQueue:
    made = WorkQueue()
    for number in range(count):
        made.add(question(number))
    for name, room in rooms.items():
        made.join(name, room)
    return made


def ids(given_out) -> dict[str, list[int]]:
    return {name: [one["id"] for one in questions] for name, questions in given_out}


def unanswered(queue: WorkQueue) -> int:
    """Questions that still need an answer."""
    held = sum(len(worker.open) for worker in queue.workers.values())
    return len(queue._waiting) + len(queue._doubted) + held


def test_nodes_get_what_they_have_room_for_in_order():
    made = handout(10, a=3, b=2)
    given_out = ids(made.assign())
    assert {name: len(numbers) for name, numbers in given_out.items()} == {"a": 3, "b": 2}
    assert sorted(number for numbers in given_out.values() for number in numbers) == [0, 1, 2, 3, 4]
    assert made.assign() == []
    number = given_out["a"][0]
    assert made.answer("a", {"id": number}) == [{"id": number}]
    assert unanswered(made) == 9
    assert ids(made.assign()) == {"a": [5]}


def test_questions_of_a_lost_node_go_to_the_others_first():
    made = handout(6, a=2)
    assert ids(made.assign()) == {"a": [0, 1]}
    made.join("b", 3)
    assert ids(made.assign()) == {"b": [2, 3, 4]}
    made.lose("a")
    made.lose("a")
    for number in (2, 3, 4):
        assert made.answer("b", {"id": number})
    assert ids(made.assign()) == {"b": [0, 1, 5]}
    assert made.answer("a", {"id": 0}) == []  # too late: it is b's now
    assert unanswered(made) == 3


def test_what_one_node_cannot_read_another_is_asked_for():
    made = handout(1, a=1)
    made.assign()
    made.join("b", 1)
    assert made.answer("a", {"id": 0, "error": "No such file"}) == []
    assert ids(made.assign()) == {"b": [0]}
    assert made.answer("b", {"id": 0, "frames": 9}) == [{"id": 0, "frames": 9}]
    assert made.workers["a"].mistakes == ["0.mp4: No such file"]


def test_what_two_nodes_or_the_only_one_cannot_read_is_bad():
    made = handout(2, a=2)
    made.assign()
    bad = {"id": 0, "error": "damaged"}
    assert made.answer("a", bad) == [bad]
    made.join("b", 1)
    assert made.answer("a", {"id": 1, "error": "damaged"}) == []
    made.assign()
    assert made.answer("b", {"id": 1, "error": "damaged, too"}) == [{"id": 1, "error": "damaged"}]
    assert made.workers["a"].mistakes == []


def test_doubt_ends_when_nobody_else_is_left():
    made = handout(1, a=1, b=0)
    made.assign()
    assert made.answer("a", {"id": 0, "error": "damaged"}) == []
    assert made.final_results() == []
    made.lose("b")
    assert made.final_results() == [{"id": 0, "error": "damaged"}]
    assert unanswered(made) == 0


def test_a_node_that_still_starts_is_waited_for_before_a_doubt_counts():
    made = WorkQueue(["quick", "slow", "never"])
    made.add(question(0))
    made.join("quick", 1)
    made.assign()
    bad = {"id": 0, "error": "No such file"}
    assert made.answer("quick", bad) == []
    assert made.final_results() == []
    made.lose("never")
    assert made.final_results() == []
    made.join("slow", 1)
    assert ids(made.assign()) == {"slow": [0]}
    assert made.answer("slow", {"id": 0, "frames": 9}) == [{"id": 0, "frames": 9}]


def test_a_doubt_counts_once_the_last_expected_node_is_lost():
    made = WorkQueue(["quick", "never"])
    made.add(question(0))
    made.join("quick", 1)
    made.assign()
    bad = {"id": 0, "error": "No such file"}
    assert made.answer("quick", bad) == []
    made.lose("never")
    assert made.final_results() == [bad]


def test_a_node_that_is_often_wrong_is_named():
    made = handout(MAX_MISTAKES, a=MAX_MISTAKES)
    made.assign()
    made.join("b", MAX_MISTAKES)
    for number in range(MAX_MISTAKES):
        assert made.unsound() == []
        made.answer("a", {"id": number, "error": "No such file"})
        made.assign()
        made.answer("b", {"id": number})
    assert made.unsound() == ["a"]


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 40))
def test_every_question_is_answered_once_whatever_happens(seed, count):
    rng = random.Random(seed)
    made = handout(count, keep=rng.randint(1, 4))
    nodes = [f"n{number}" for number in range(5)]
    open_at: dict[str, list[int]] = {}
    answered: list[int] = []
    for _ in range(100 * (count + 1)):
        for name, questions in made.assign():
            open_at.setdefault(name, []).extend(one["id"] for one in questions)
        answered += [one["id"] for one in made.final_results()]
        if not unanswered(made):
            break
        name = rng.choice([*nodes, "keep"])
        what = rng.random()
        if name != "keep" and what < 0.1 and name not in made.workers:
            made.join(name, rng.randint(1, 3))
            open_at[name] = []
        elif name != "keep" and what < 0.2:
            made.lose(name)
            open_at.pop(name, None)
        elif open_at.get(name):
            number = open_at[name].pop(rng.randrange(len(open_at[name])))
            answer = {"id": number, "error": "x"} if rng.random() < 0.2 else {"id": number}
            answered += [one["id"] for one in made.answer(name, answer)]
    assert sorted(answered) == list(range(count))

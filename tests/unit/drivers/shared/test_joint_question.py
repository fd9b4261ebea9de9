"""Questions about single keys are asked together, each after its caller has asked (I16)."""

import asyncio
from collections.abc import Mapping, Sequence

import pytest

from stilltide.connectors.errors import FatalError, RetriableError
from stilltide.pipeline.drivers.shared.joint_question import JointQuestion

WAIT_S = 60.0


class Lengths:
    """Answers with the lengths of words, each request when a test says so."""

    def __init__(self) -> None:
        self.requests: asyncio.Queue[tuple[Sequence[str], asyncio.Future[None]]] = asyncio.Queue()

    async def ask(self, words: Sequence[str]) -> Mapping[str, int]:
        """The lengths of all words but the empty one."""
        may_answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.requests.put_nowait((words, may_answer))
        await may_answer
        return {word: len(word) for word in words if word}


async def test_what_is_wanted_meanwhile_is_asked_together():
    """In the next request, each word once; a word that does not exist has no answer."""
    lengths = Lengths()
    question = JointQuestion(lengths.ask)
    async with asyncio.timeout(WAIT_S):
        first = asyncio.create_task(question.about("one"))
        words, answer_first = await lengths.requests.get()
        assert words == ["one"]
        others = asyncio.gather(*map(question.about, ("one", "three", "", "three")))
        await asyncio.sleep(0)
        answer_first.set_result(None)
        assert await first == 3
        words, answer_others = await lengths.requests.get()
        assert words == ["one", "three", ""]
        answer_others.set_result(None)
        assert await others == [3, 5, None, 5]
        assert lengths.requests.empty()


async def test_an_error_is_the_answer_of_all_that_were_asked_together():
    """The next question is asked as if nothing had happened."""
    lengths = Lengths()
    question = JointQuestion(lengths.ask)
    async with asyncio.timeout(WAIT_S):
        asking = [asyncio.create_task(question.about(word)) for word in ("a", "b")]
        _, answer = await lengths.requests.get()
        answer.set_exception(RetriableError("the broker is away"))
        for task in asking:
            with pytest.raises(RetriableError, match="away"):
                await task
        again = asyncio.create_task(question.about("a"))
        _, answer = await lengths.requests.get()
        answer.set_result(None)
        assert await again == 1


async def test_a_caller_that_gives_up_leaves_the_others_their_answer():
    """Its own question is answered to nobody."""
    lengths = Lengths()
    question = JointQuestion(lengths.ask)
    async with asyncio.timeout(WAIT_S):
        asking = [asyncio.create_task(question.about("a")) for _ in range(2)]
        _, answer = await lengths.requests.get()
        asking[0].cancel()
        answer.set_result(None)
        assert await asking[1] == 1


async def test_no_caller_waits_after_the_close():
    """Neither for the request under way, nor for the next one."""
    lengths = Lengths()
    question = JointQuestion(lengths.ask)
    async with asyncio.timeout(WAIT_S):
        first = asyncio.create_task(question.about("a"))
        await lengths.requests.get()
        second = asyncio.create_task(question.about("b"))
        await asyncio.sleep(0)
        await question.close()
        for task in (first, second):
            with pytest.raises(FatalError, match="closed"):
                await task

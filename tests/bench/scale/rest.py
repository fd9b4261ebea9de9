"""A cluster at rest: processor time of worker, link and brokers by thread, in ms/s.

Two clusters; on the first a broker alone, then with an idle worker, then with two links and ten
replicated groups.

Sizes: REST_S.
"""

from contextlib import AsyncExitStack

from stilltide.pipeline.cli.common.output import say
from stilltide.schemas.topics import TopicSpec
from stilltide.schemas.values import ClusterName
from tests.bench.harness import report, size
from tests.bench.replication.copiers import Pair, link_command, running, running_pair
from tests.bench.scale.pairs import carry, replicated_worker
from tests.bench.spent import past
from tests.bench.threads import ThreadTimes, thread_rows, thread_times

TOPIC = "rest"
PARTITIONS = 4
GROUPS = [f"{TOPIC}-group-{number}" for number in range(10)]
SETTLE_S = 20.0
LEAST_MS = 0.5


async def run() -> None:
    """Measures and reports."""
    seconds = float(size("REST_S", 30))
    columns: dict[str, ThreadTimes] = {}
    threads: dict[str, int] = {}
    with running_pair() as pair:
        async with AsyncExitStack() as stack:
            pids = {"broker": pair.a.pid}
            columns["broker alone"] = await _rest(pids, seconds)
            workers = {name: replicated_worker(pair, name) for name in "ab"}
            for name, worker in workers.items():
                await stack.enter_async_context(worker)
                await worker.serving()
                if name == "a":
                    pids["worker"] = worker.pid
                    columns["worker"] = await _rest(pids, seconds)
                    threads["worker"] = worker.held().threads
            await _topics(pair)
            for ends in ("ab", "ba"):
                command = link_command(pair, TOPIC, ends=ends)
                link = stack.enter_context(running(command, pair.directory / f"link-{ends}"))
                pids[f"link_{ends}"] = link.pid
            await carry(pair, TOPIC, GROUPS, PARTITIONS)
            columns["links, groups"] = await _rest(pids, seconds)
            threads["worker of groups"] = workers["a"].held().threads
    report("rest", thread_rows(columns, LEAST_MS), threads=threads)
    say(f"rest: threads: {threads}")


async def _topics(pair: Pair) -> None:
    for name in "ab":
        admin = pair.connectors[ClusterName(name)].admin()
        await admin.ensure_topics([TopicSpec(TOPIC, PARTITIONS)])
        await admin.close()


async def _rest(pids: dict[str, int], seconds: float) -> ThreadTimes:
    """Milliseconds of each second, by thread."""
    await past(SETTLE_S)
    before = thread_times(pids)
    await past(seconds)
    after = thread_times(pids)
    used = {at: 1000 * (after[at] - before.get(at, 0.0)) / seconds for at in after}
    say(f"rest: {', '.join(pids)}: {sum(used.values()):.0f} ms/s")
    return used

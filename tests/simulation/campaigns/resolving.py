"""Many short histories of resolvers, slow applications, and databases with unique keys.

Each round is one history of the stateful test, drawn from a seed and without a search for smaller
ones, so that ten thousand of them take a minute.
"""

import random

from tests.stateful.test_resolver import DATABASES, DECIDERS, Resolving

STEPS = 60
"""Steps of a round, before everything is brought to its end."""


def resolve(rounds: range) -> int:
    """Runs rounds, and says how many have broken a decision; returns the exit code."""
    broken = 0
    for number in rounds:
        try:
            _round(random.Random(f"resolving {number}"))
        except AssertionError as error:
            broken += 1
            print(f"round {number}: {error!r}", flush=True)
    print(f"{len(rounds)} rounds from {rounds.start} on, {broken} broken")
    return 1 if broken else 0


def _round(chance: random.Random) -> None:
    world = Resolving()
    for _ in range(STEPS):
        _step(world, chance)
        world.both_or_neither()
        world.rows_go_last()
    world.teardown()


def _step(world: Resolving, chance: random.Random) -> None:  # noqa: C901 - one for each rule
    index = chance.randrange(10**6)
    busy = any(resolver.todo for resolver in world.resolvers)
    match chance.choice(_KINDS):
        case "begin":
            world.begin(chance.choice(DECIDERS))
        case "begin and prepare":
            world.begin_and_prepare(chance.choice(DECIDERS))
        case "goes on":
            world.application_goes_on(index)
        case "rolls back":
            world.application_rolls_back(index)
        case "dies":
            world.application_dies(index)
        case "client asks":
            world.client_asks(index, likely=chance.random() < 0.5)
        case "client ends":
            world.client_ends(index)
        case "killed":
            world.resolver_is_killed(chance.randrange(len(world.resolvers)))
        case "other address":
            world.address_changes(chance.randrange(len(world.resolvers)), chance.choice(DATABASES))
        case "resolver" if busy:
            effects = range(chance.randrange(1, 7))
            world.resolver_goes_on(
                index, [(chance.randrange(10**6), _fails(chance)) for _ in effects]
            )
        case _:
            world.time_passes(chance.choice((1_000, 2_000)))


def _fails(chance: random.Random) -> bool:
    return chance.random() < 0.25


_KINDS = (
    "begin",
    "begin and prepare",
    "goes on",
    "goes on",
    "rolls back",
    "dies",
    "client asks",
    "client ends",
    "killed",
    "other address",
    *("resolver",) * 4,
)
"""What happens next, as often as it is named here; time passes where no resolver has to act."""

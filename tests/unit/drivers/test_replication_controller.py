"""Controllers on clusters in memory: claims out, positions in.

Rules: protocols.md I.
"""

from tests.support.replicated_clusters import replicated


async def test_a_group_is_carried_over():
    """I6, I7: what a group has read here it need not read there."""
    async with replicated("ab", "g") as sites:
        a, b = sites["a"], sites["b"]
        a.write(*(b"%d" % number for number in range(10)))
        a.commit("g", 6)
        await sites.until(lambda: b.committed("g") == 6)
        a.commit("g", 10)
        await sites.until(lambda: b.committed("g") == 11)  # behind the control record

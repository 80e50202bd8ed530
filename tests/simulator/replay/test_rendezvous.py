"""Rendezvous, channels and tags are the same for all partners."""

from collections import Counter

import pytest

from clustersim.simulator.replay.rendezvous import (
    CollectiveRendezvous,
    MessageRendezvous,
    channels,
    members,
    pairs,
    rendezvous_of,
    tags,
)
from clustersim.simulator.schedule.ops import Collective, Recv, Send
from tests.simulator.replay.schedules import KINDS, scenario


@pytest.fixture(scope="module", params=KINDS)
def schedule(request):
    return scenario(*KINDS[request.param]).schedule()


def test_every_rendezvous_has_exactly_its_partners(schedule):
    came = Counter()
    for rank in range(schedule.mesh.world_size):
        of_rank = rendezvous_of(schedule, rank)
        came.update(rendezvous for rendezvous in of_rank if rendezvous)
        for op, rendezvous in zip(schedule.program(rank).ops, of_rank, strict=True):
            assert (rendezvous is not None) == isinstance(op, Collective | Send | Recv)
    ranks_of = channels(schedule)
    for rendezvous, count in came.items():
        assert count == (len(ranks_of[rendezvous.channel]) if isinstance(rendezvous, CollectiveRendezvous) else 2)


def test_tags_distinguish_messages_and_agree_at_both_ends(schedule):
    of_rank = [tags(schedule, rank) for rank in range(schedule.mesh.world_size)]
    for sender, receiver in pairs(schedule):
        sent = {m: tag for m, tag in of_rank[sender].items() if (m.sender, m.receiver) == (sender, receiver)}
        received = {m: tag for m, tag in of_rank[receiver].items() if (m.sender, m.receiver) == (sender, receiver)}
        assert sent == received
        assert sorted(sent.values()) == list(range(len(sent)))


def test_streams_have_channels_of_their_own(schedule):
    ranks_of = channels(schedule)
    for rank in range(schedule.mesh.world_size):
        for op, rendezvous in zip(schedule.program(rank).ops, rendezvous_of(schedule, rank), strict=True):
            if isinstance(rendezvous, CollectiveRendezvous):
                assert rendezvous.channel.stream == op.stream
                assert ranks_of[rendezvous.channel] == members(schedule, rank, op)
            if isinstance(rendezvous, MessageRendezvous):
                assert rank in (rendezvous.sender, rendezvous.receiver)

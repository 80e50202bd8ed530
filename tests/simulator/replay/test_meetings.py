"""Meetings, channels and tags are the same to all who take part."""

from collections import Counter

import pytest

from simulator.replay.buffers import members
from simulator.replay.meetings import Gathering, Message, channels, meetings, pairs, tags
from simulator.schedule import Collective, Recv, Send
from tests.simulator.replay.schedules import KINDS, scenario


@pytest.fixture(scope="module", params=KINDS)
def schedule(request):
    return scenario(*KINDS[request.param]).schedule()


def test_every_meeting_has_all_its_partners_and_no_one_else(schedule):
    came = Counter()
    for rank in range(schedule.mesh.world_size):
        of_rank = meetings(schedule, rank)
        came.update(meeting for meeting in of_rank if meeting)
        for op, meeting in zip(schedule.program(rank).ops, of_rank, strict=True):
            assert (meeting is not None) == isinstance(op, Collective | Send | Recv)
    ranks_of = channels(schedule)
    for meeting, count in came.items():
        assert count == (len(ranks_of[meeting.channel]) if isinstance(meeting, Gathering) else 2)


def test_tags_tell_messages_of_a_pair_apart_alike_at_both_ends(schedule):
    of_rank = [tags(schedule, rank) for rank in range(schedule.mesh.world_size)]
    for sender, receiver in pairs(schedule):
        sent = {m: tag for m, tag in of_rank[sender].items() if (m.sender, m.receiver) == (sender, receiver)}
        received = {m: tag for m, tag in of_rank[receiver].items() if (m.sender, m.receiver) == (sender, receiver)}
        assert sent == received
        assert sorted(sent.values()) == list(range(len(sent)))


def test_streams_have_channels_of_their_own(schedule):
    ranks_of = channels(schedule)
    for rank in range(schedule.mesh.world_size):
        for op, meeting in zip(schedule.program(rank).ops, meetings(schedule, rank), strict=True):
            if isinstance(meeting, Gathering):
                assert meeting.channel.stream == op.stream
                assert ranks_of[meeting.channel] == members(schedule, rank, op)
            if isinstance(meeting, Message):
                assert rank in (meeting.sender, meeting.receiver)

"""The scripts of a consumer group: who reads which stream, and reading, acknowledging and moving under that lease. Text, no I/O.

A group of Redis gives its entries to whoever asks first, so two members beside each other would lose the order of keys. Here each stream
has one reader at a time, by a lease; a member that is silent for its session loses all of its leases at once. Two keys of the group:

| key | holds |
|---|---|
| `cdc.NAME.members` | sorted set: each member's token, and until when it lives (Redis's clock, Unix ms) |
| `cdc.NAME.leases` | hash: `lease:STREAM` and `instance:NAME` hold a token, `reads:TOKEN` the topics that a member reads |

Rules.
- A token is made anew each time a member joins, so what an older membership has sent cannot pass for the present one's.
- A lease is worth as much as its token's life: every script that reads or moves looks at both, in the same instant.
- An acknowledgement needs no lease: whoever sends it has committed the effect, and that stays true.
"""

from __future__ import annotations

from collections.abc import Iterator
from struct import Struct
from typing import Final

ALIVE: Final = """
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local function alive(token)
  local expiry = redis.call('ZSCORE', KEYS[1], token)
  return expiry and tonumber(expiry) > now
end
"""

TURN: Final = (
    ALIVE
    + """
local token, session_ms, joined, before, instance, topics = ARGV[1], ARGV[2], ARGV[3] == '1', ARGV[4], ARGV[5], ARGV[6]
redis.call('ZREM', KEYS[1], '')
local longest = now + session_ms
for _, each in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', longest), '+inf')) do
  redis.call('ZADD', KEYS[1], string.format('%.0f', longest), each)
end
local function forget(who)
  redis.call('ZREM', KEYS[1], who)
  redis.call('HDEL', KEYS[2], 'reads:' .. who)
end
for _, dead in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))) do forget(dead) end
if instance ~= '' then
  local holder = redis.call('HGET', KEYS[2], 'instance:' .. instance)
  if holder and holder ~= token then
    if joined or (before ~= '' and holder ~= before) then return {'TAKEN'} end
    forget(holder)
  end
end
if joined and not alive(token) then return {'LOST'} end
if before ~= '' then forget(before) end
if instance ~= '' then redis.call('HSET', KEYS[2], 'instance:' .. instance, token) end
redis.call('ZADD', KEYS[1], string.format('%.0f', now + session_ms), token)
redis.call('HSET', KEYS[2], 'reads:' .. token, topics)

local function share(topic, streams)
  local readers = {}
  for _, each in ipairs(redis.call('ZRANGE', KEYS[1], 0, -1)) do
    local reads = redis.call('HGET', KEYS[2], 'reads:' .. each)
    if reads and string.find(' ' .. reads .. ' ', ' ' .. topic .. ' ', 1, true) then
      readers[#readers + 1] = redis.sha1hex(topic .. string.match(each, '^(.*)%.')) .. each
    end
  end
  table.sort(readers)
  local least, more = math.floor(streams / #readers), streams % #readers
  for rank, each in ipairs(readers) do
    if string.sub(each, 41) == token then return least + (rank <= more and 1 or 0) end
  end
end

local owned, surplus, at = {}, {}, 7
while at <= #ARGV do
  local topic, streams = ARGV[at], tonumber(ARGV[at + 1])
  local mine, free = {}, {}
  for i = at + 2, at + 1 + streams do
    local holder = redis.call('HGET', KEYS[2], 'lease:' .. ARGV[i])
    if holder == token then mine[#mine + 1] = ARGV[i]
    elseif not holder or not alive(holder) then free[#free + 1] = ARGV[i] end
  end
  local most = share(topic, streams)
  for _, each in ipairs(free) do
    if #mine < most then
      redis.call('HSET', KEYS[2], 'lease:' .. each, token)
      mine[#mine + 1] = each
    end
  end
  for i, each in ipairs(mine) do
    owned[#owned + 1] = each
    if i > most then surplus[#surplus + 1] = each end
  end
  at = at + 2 + streams
end
return {'OK', owned, surplus}
"""
)
"""KEYS: members, leases. ARGV: token, session in ms, 1 when it has joined, the token before (empty at the start of a process), instance
(empty without one), topics between spaces, and for each topic its name, the number of its streams and their keys. Says that we live, takes
what is free, and returns OK, our streams and those that we are to give back; LOST when we were silent for too long; TAKEN when another
process has our instance's name.

The first command takes nothing away, and writes: a full Redis lets a script that has written go on (scriptVerifyOOM), so members
live, acknowledge and so let it trim. A life that ends later than ours would is of a clock that was set back since, or of a member with
a longer session: it is cut to ours, so that a dead member keeps nothing for hours.

Streams of a topic are shared evenly among those who read it; who gets one more is told by a hash of topic and member, so that topics of
one stream each do not all go to the same member. A token is the member's name, a dot and what makes it new."""

RELEASE: Final = """
for i = 4, #ARGV do
  if redis.call('HGET', KEYS[2], 'lease:' .. ARGV[i]) == ARGV[1] then redis.call('HDEL', KEYS[2], 'lease:' .. ARGV[i]) end
end
if ARGV[2] == '1' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  redis.call('HDEL', KEYS[2], 'reads:' .. ARGV[1])
  local instance = 'instance:' .. ARGV[3]
  if redis.call('HGET', KEYS[2], instance) == ARGV[1] then redis.call('HDEL', KEYS[2], instance) end
end
return 'OK'
"""
"""KEYS: members, leases. ARGV: token, 1 when we leave, instance, streams."""

FETCH: Final = (
    ALIVE
    + """
local token, group, member, count, most = ARGV[1], ARGV[2], ARGV[3], tonumber(ARGV[4]), tonumber(ARGV[5])
local function told(flat)
  local pairs = {}
  for i = 1, #flat, 2 do pairs[flat[i]] = flat[i + 1] end
  return pairs
end
local function begun(key)
  for _, each in ipairs(redis.call('XINFO', 'CONSUMERS', key, group)) do
    local other = told(each)
    if other.name ~= member and other.pending == 0 then redis.call('XGROUP', 'DELCONSUMER', key, group, other.name) end
  end
  for _, each in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local found = told(each)
    if found.name == group then return found['last-delivered-id'] end
  end
end
local function settle_gone(key)
  for _, each in ipairs(redis.call('XPENDING', key, group, '-', '+', 10000, member)) do
    if #redis.call('XRANGE', key, each[1], each[1]) == 0 then redis.call('XACK', key, group, each[1]) end
  end
end
local function packed(entries)
  local parts = {}
  for _, entry in ipairs(entries) do
    if entry and entry[2] then
      local words = entry[2]
      parts[#parts + 1] = struct.pack('>I4I4', #words + 1, #entry[1])
      for i = 1, #words do parts[#parts + 1] = struct.pack('>I4', #words[i]) end
      parts[#parts + 1] = entry[1]
      for i = 1, #words do parts[#parts + 1] = words[i] end
    end
  end
  return table.concat(parts)
end
local function unread(key, at, step)
  local found = redis.call('XREADGROUP', 'GROUP', group, member, 'COUNT', step, 'STREAMS', key, '>')
  local entries = found and found[1][2] or {}
  return entries, '>', #entries < step
end
local function claimed(key, at, step)
  local found = redis.call('XAUTOCLAIM', key, group, member, 0, at, 'COUNT', step)
  for _, entry in ipairs(found[2]) do
    if not entry then
      settle_gone(key)
      break
    end
  end
  return found[2], found[1], found[1] == '0-0'
end
local function read(by, key, at)
  local parts, bytes, left, ended = {}, 0, count, false
  while not ended and left > 0 and bytes < most do
    local entries, step = nil, math.min(left, 16)
    entries, at, ended = by(key, at, step)
    parts[#parts + 1] = packed(entries)
    bytes, left = bytes + #parts[#parts], left - step
  end
  return table.concat(parts), at, ended
end
if not alive(token) then return {'LOST'} end
local answer = {'OK'}
for i = 3, #KEYS do
  local key, at = KEYS[i], ARGV[i + 3]
  if redis.call('HGET', KEYS[2], 'lease:' .. key) ~= token then return {'LOST'} end
  if at == '>' then
    answer[#answer + 1] = {'>', '', (read(unread, key, at))}
  else
    local entries, next, ended = read(claimed, key, at)
    answer[#answer + 1] = {ended and '>' or next, ended and begun(key) or '', entries}
  end
end
return answer
"""
)
"""KEYS: members, leases, our streams. ARGV: token, group, member, most entries of a stream, most bytes of one (about), and for each
stream where claiming goes on, or `>`. Returns LOST, or OK and for each stream where to go on, the group's last entry when claiming has
ended there, and entries (see `unpacked`): as one text, because redis-py spends ten times as long on as many texts.

Nobody knows how large an entry is before it is read, so they are read a few at a time, until there are enough bytes: what is too much are
those few at most, whatever the entries before them were like.

Redis 6.2 leaves entries on the list that were deleted since, where trimming would wait for them for ever: `settle_gone` takes them off.

What others have read and not acknowledged is claimed before anything new is read, so a stream is read in its order. Who has nothing left
to acknowledge is no member of this stream any more, and is taken off Redis's list."""

ACK: Final = """
redis.call('XACK', KEYS[1], ARGV[1], unpack(ARGV, 3))
if ARGV[2] == '1' then redis.call('XDEL', KEYS[1], unpack(ARGV, 3)) end
return 'OK'
"""
"""KEYS: a stream. ARGV: group, 1 to delete the entries, ids (ACK_MAX at most)."""

ACK_MAX: Final = 1_000

MOVE: Final = (
    ALIVE
    + """
local token, group, id, gone, ids = ARGV[1], ARGV[2], ARGV[3], ARGV[4] == '1', tonumber(ARGV[5])
if not alive(token) or redis.call('HGET', KEYS[2], 'lease:' .. KEYS[3]) ~= token then return 'LOST' end
if #redis.call('XPENDING', KEYS[3], group, id, id, 1) == 0 then return 'DONE' end
redis.call('XADD', KEYS[4], '*', unpack(ARGV, 6 + ids))
for i = 6, 5 + ids do
  redis.call('XACK', KEYS[3], group, ARGV[i])
  if gone then redis.call('XDEL', KEYS[3], ARGV[i]) end
end
return 'MOVED'
"""
)
"""KEYS: members, leases, the record's stream, the one that it moves to. ARGV: token, group, its id, 1 to delete what is acknowledged, how
many ids, the ids (its own and those settled before it), fields and values in turn. Returns MOVED, DONE when it was moved before, or LOST.

XADD is the one command that can fail, and it is the first one that writes."""


def unpacked(packed: bytes) -> Iterator[tuple[bytes, list[bytes]]]:
    """Yield the ids of entries, and their fields and values in turn.

    Each entry is the number of its words, their lengths (all as 32 bits, big-endian), and the words, the id first.
    """
    at, end = 0, len(packed)
    while at < end:
        [count] = _LENGTHS[1].unpack_from(packed, at)
        shape = _LENGTHS.get(count) or _LENGTHS.setdefault(count, Struct(f">{count}I"))
        lengths = shape.unpack_from(packed, at + 4)
        at += 4 + 4 * count
        words = []
        for length in lengths:
            words.append(packed[at : at + length])
            at += length
        yield words[0], words[1:]


_LENGTHS = {1: Struct(">I")}


def members(group: str) -> str:
    """Return the key of a group's members."""
    return f"cdc.{group}.members"


def leases(group: str) -> str:
    """Return the key of a group's leases."""
    return f"cdc.{group}.leases"

"""The scripts that run inside of Redis, and the command that carries a commit to them. Text and bytes, no I/O.

The position lies in one hash, under the name of topics.position:

| field | holds |
|---|---|
| `id` | made by `cdc init`: what tells this Redis, and its copies, from all others |
| `owner`, `epoch` | who may commit: each fence puts a new owner there, and counts |
| `position`, `commits` | the last position, and how many there were |
| `topic:NAME` | a topic that was opened, and the number of its streams |
| `trimmed:KEY` | how many entries of a stream we have trimmed |

Rules.
- A script runs alone, and what it writes goes into the append-only file and to the replicas as one MULTI: all of it or nothing.
- But a script that fails half-way leaves what it has written. So an XADD that fails takes back those before it, and the position
  comes last. Memory cannot end half-way: Redis looks at maxmemory when the script begins.
- A commit is refused unless owner and number of commits are what its sender knows. The owner fences; the number also refuses a
  sender whose last commit this Redis has lost (a tail of the append-only file), where the owner may look right again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FENCE = """
if redis.call('HEXISTS', KEYS[1], 'id') == 0 then return false end
redis.call('HINCRBY', KEYS[1], 'epoch', 1)
redis.call('HSET', KEYS[1], 'owner', ARGV[1])
return redis.call('HMGET', KEYS[1], 'position', 'commits')
"""
"""KEYS: the position. ARGV: the new owner. Returns position and number of commits, or nil where `cdc init` has made no position."""

COMMIT = """
local place = redis.call('HMGET', KEYS[1], 'owner', 'commits')
if place[1] ~= ARGV[1] or (place[2] or '0') ~= ARGV[2] then return 'FENCED' end
local keys, ids, count, at, total = {}, {}, 0, 7, #ARGV
local function take_back(fault)
  for i = 1, count do redis.call('XDEL', keys[i], ids[i]) end
  return fault
end
while at <= total do
  local key, last = KEYS[tonumber(ARGV[at])], at + 1 + tonumber(ARGV[at + 1])
  local id = redis.pcall('XADD', key, '*', unpack(ARGV, at + 2, last))
  if type(id) ~= 'string' then return take_back(id) end
  count = count + 1
  keys[count], ids[count] = key, id
  at = last + 1
end
local done = redis.pcall('HSET', KEYS[1], 'position', ARGV[3], 'commits', ARGV[2] + 1)
if type(done) ~= 'number' then return take_back(done) end
local maxlen, age_ms, unread = tonumber(ARGV[4]), tonumber(ARGV[5]), ARGV[6] == '1'

local function before(a, b)
  local a_ms, a_seq = string.match(a, '(%d+)-(%d+)')
  local b_ms, b_seq = string.match(b, '(%d+)-(%d+)')
  if a_ms ~= b_ms then return tonumber(a_ms) < tonumber(b_ms) end
  return tonumber(a_seq) < tonumber(b_seq)
end

local function needed(key)
  local first = nil
  for _, group in ipairs(redis.call('XINFO', 'GROUPS', key)) do
    local told = {}
    for i = 1, #group, 2 do told[group[i]] = group[i + 1] end
    local id = told['last-delivered-id']
    if told['pending'] > 0 then id = redis.call('XPENDING', key, told['name'])[2] end
    if first == nil or before(id, first) then first = id end
  end
  return first
end

local function trim(key)
  local gone, surplus = 0, maxlen > 0 and redis.call('XLEN', key) - maxlen or 0
  if surplus <= 0 and age_ms == 0 then return end
  local keep = not unread and needed(key) or nil
  if surplus > 0 then
    gone = keep and redis.call('XTRIM', key, 'MINID', '~', keep, 'LIMIT', surplus) or redis.call('XTRIM', key, 'MAXLEN', '~', maxlen)
  end
  if age_ms > 0 then
    local now = redis.call('TIME')
    local old = string.format('%.0f-0', now[1] * 1000 + math.floor(now[2] / 1000) - age_ms)
    gone = gone + redis.call('XTRIM', key, 'MINID', '~', keep and before(keep, old) and keep or old)
  end
  if gone > 0 then redis.call('HINCRBY', KEYS[1], 'trimmed:' .. key, gone) end
end
for i = 2, #KEYS do trim(KEYS[i]) end
return 'OK'
"""
"""KEYS: the position, then the streams. ARGV: owner, number of commits, position, maxlen, age in ms (both 0 for no limit), 1 to
trim what is unread, then for each entry the index of its stream in KEYS, how many words follow, and fields with values in turn.
Returns OK or FENCED, or Redis's error.

A group needs what it has not read, and of that what it has read the oldest entry that it has not acknowledged. Where there are
groups, MINID never passes the first needed entry, and LIMIT takes no more than the surplus."""

WORDS_MAX = 1024 * 1024 - 64
"""Words of one command: Redis 6.2 takes 1,048,576 (src/networking.c, processMultibulkBuffer), and some are ours."""

FIELDS_MAX = 1_000
"""Fields of one entry: Lua hands over at most some 8,000 words at a time (LUAI_MAXCSTACK)."""


def bulk(word: bytes) -> bytes:
    """Return a word as RESP has it."""
    return b"$%d\r\n%b\r\n" % (len(word), word)


def packed(sha: str, keys: Iterable[str], words: Iterable[bytes], entries: int) -> list[bytes]:
    """Return the beginning of an EVALSHA, up to the `entries` words of entries that follow."""
    named, plain = [key.encode() for key in keys], list(words)
    head = b"*%d\r\n" % (3 + len(named) + len(plain) + entries)
    return [head, *map(bulk, (b"EVALSHA", sha.encode(), b"%d" % len(named), *named, *plain))]


def told(flat: Iterable[bytes]) -> Mapping[bytes, bytes]:
    """Return names and values that Redis tells in turn."""
    pairs = iter(flat)
    return dict(zip(pairs, pairs, strict=True))

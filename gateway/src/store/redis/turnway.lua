#!lua name=turnway1

-- Turnway's store: one function for each atomic rule, each on the keys of one slot.
--
-- Every function may be called again with the same arguments: a call whose answer was lost is repeated.
-- Replies are arrays of strings; nothing of a user is ever in an error. Numbers stay below 2^53.
-- Within a major release VERSION only grows, and a newer library serves older nodes too; a change that
-- cannot do that gets a library and functions of another name, which live beside these.
local VERSION = 13

-- How old a registration may be for an op to lean on it. What is older may have been cleared away.
local FRESH = 60000

-- What a session has gained or lost is counted for its user from so many bytes on, and when it is let go: to count
-- with every fact would cost a quarter of a turn. A quota may be exceeded by so much for each session that is owned.
local UNCOUNTED_MOST = 4096

-- No lease is given for longer: one that ends later was given by a clock that was wrong.
local LEASE_MOST = 60000

-- Of the hash `own`:
--   e, c     the fence: epoch and claim nonce
--   n, i     the owner: node and incarnation; empty: nobody
--   u, b     whose it is, and when it became somebody's; absent: no session
--   cl       '1' while it is closed
--   g        '1' once it is deleted: only u, cl, qi, qc, lv and a higher e are left beside it (since version 6)
--   qi, qc   the last place given in the inbox, and in the control lane
--   ib       weight of what is in the inbox
--   seq, le  the last fact's place and its epoch
--   fl       facts up to this are forgotten
--   ss, se   place and epoch of the kept state
--   lv       version of the set of listeners
--   lb       bytes of the facts in the log (since version 8, as the two below)
--   sb       bytes of the kept state
--   ub       bytes gained (below zero: lost) that are not counted for its user yet
--   bb       bytes of the blobs, and of the room that is kept for uploads (since version 13)
--   a:NAME   the session's annotation of that name, for lists (since version 10)

-- As a whole number, which takes half the time that a fraction does.
local function str(number)
  return string.format('%d', number)
end

local function num(text)
  return tonumber(text or '0') or 0
end

-- The store's clock, or the time a test gives.
local function clock(given)
  local at = tonumber(given)
  if at > 0 then return at end
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

local function fresh(stamp, now)
  local at = num(stamp)
  return at > 0 and now - at <= FRESH
end

local function id(place)
  return str(place) .. '-0'
end

local function place(entry)
  return string.match(entry[1], '^%d+')
end

-- The value of a field of a stream's entry.
local function field(entry, name)
  local pairs_ = entry[2]
  for at = 1, #pairs_, 2 do
    if pairs_[at] == name then return pairs_[at + 1] end
  end
  return ''
end

local function head(own, ...)
  local names = { ... }
  local values = redis.call('HMGET', own, unpack(names))
  local h = {}
  for at, name in ipairs(names) do h[name] = values[at] or nil end
  h.n, h.i, h.e = h.n or '', h.i or '', h.e or '0'
  return h
end

local function fenced(h, epoch, nonce)
  return h.n == '' or h.e ~= epoch or h.c ~= nonce
end

local function foreign(h, user, operator)
  return operator ~= '1' and h.u and h.u ~= user
end

-- Something lies in a lane after a place: pairs of place and JSON.
local function waiting(lane, after)
  local found = {}
  for _, entry in ipairs(redis.call('XRANGE', lane, id(num(after) + 1), '+')) do
    found[#found + 1] = place(entry)
    found[#found + 1] = field(entry, 'j')
  end
  return found
end

-- An emptied stream takes room for nothing: the last place stands in `own`.
local function clear(lane)
  if redis.call('XLEN', lane) == 0 then redis.call('DEL', lane) end
end

-- === stored bytes ===
--
-- `ix:{TENANT}/bytes` has the bytes of each user ('u' and the name) and of the tenant ('t'). It lies in another slot than
-- a session, and is found from the session's own key, so that calls of earlier releases are counted, too. It is called
-- like the tenant's indexes, so that the rights that nodes were given for those suffice.

-- What is counted beside the text of an input or control entry, and beside that of a fact or kept state.
local RECORD, PLACED = 4, 20
-- Facts whose mean stands for those of an earlier release, which were not counted.
local SAMPLE = 32
-- So many facts, or bytes, are counted each when facts are forgotten, for nobody is served meanwhile: some 5 ms.
local COUNTED_MOST, COUNTED_BYTES_MOST = 4096, 4194304

local function usage(own)
  return 'ix:{' .. string.match(own, '^own:{([^/]*)/') .. '}/bytes'
end

-- A session of a user has gained or lost bytes. No number falls below zero.
local function count(own, user, bytes)
  if not user or bytes == 0 then return end
  local key = usage(own)
  local held = redis.call('HINCRBY', key, 'u' .. user, str(bytes))
  if held <= 0 then
    redis.call('HDEL', key, 'u' .. user)
    bytes = bytes - held
  end
  if bytes ~= 0 and redis.call('HINCRBY', key, 't', str(bytes)) <= 0 then redis.call('HDEL', key, 't') end
end

-- Of the bytes that a session has gained or lost: those that stay uncounted, none where nobody owns it, and those that
-- are to be counted, once the session's own records are written.
local function defer(h, bytes)
  if h.n ~= '' and math.abs(bytes) < UNCOUNTED_MOST then return bytes, 0 end
  return 0, bytes
end

-- Whether more bytes would exceed the quota of a user or of the tenant; '': there is none.
local function over(own, user, bytes, user_most, tenant_most)
  if not user_most or (user_most == '' and tenant_most == '') then return false end
  local held = redis.call('HMGET', usage(own), 'u' .. user, 't')
  local function exceeds(number, most) return most ~= '' and num(number or nil) + bytes > num(most) end
  return exceeds(held[1], user_most) or exceeds(held[2], tenant_most)
end

-- An estimate for facts that an earlier release wrote.
local function estimate(log, seq, floor)
  if seq <= floor then return 0 end
  local last, bytes = redis.call('XRANGE', log, id(math.max(floor + 1, seq - SAMPLE + 1)), id(seq)), 0
  for _, entry in ipairs(last) do bytes = bytes + PLACED + #field(entry, 'j') end
  if #last == 0 then return 0 end
  return math.floor(bytes / #last * (seq - floor))
end

-- === rights ===
--
-- Redis checks a user's rights at each command of a function, and undoes nothing when one of them is refused. So before
-- the first of several writes, the right to each later command is asked for; the first refuses itself. An operator may
-- revoke a right at any time: the whole call is refused then, and may be repeated when the right is back.

-- Stands for any node's channel.
local CHANNEL = 'inbox:{}'

local function forbidden()
  return redis.error_reply('NOPERM this user lacks the right to a command of this function')
end

-- Whether `count` may run.
local function countable(own)
  local key = usage(own)
  return redis.acl_check_cmd('HINCRBY', key) and redis.acl_check_cmd('HDEL', key)
end

-- A function that needs all of some commands, each given with the number of its key; `counts` if it calls `count`.
local function guarded(callback, counts, commands)
  return function(keys, args)
    for at = 1, #commands, 2 do
      if not redis.acl_check_cmd(commands[at], keys[commands[at + 1]]) then return forbidden() end
    end
    if counts and not countable(keys[1]) then return forbidden() end
    return callback(keys, args)
  end
end

-- === bells ===

-- A name of 128 bits, little end first.
local function binary(digits)
  local sub = string.sub
  return struct.pack(
    '<I4I4I4I4',
    tonumber(sub(digits, 25, 32), 16), tonumber(sub(digits, 17, 24), 16),
    tonumber(sub(digits, 9, 16), 16), tonumber(sub(digits, 1, 8), 16)
  )
end

-- Tells the owner what now lies in its inbox ('\0') or control lane ('\1'), in the step that puts it there: a
-- frame of the bus, begun by whoever asks (docs/ownership.md 4.1). How many heard it; '' where nobody was told,
-- for who asks is the owner, or does not know of this.
local function ring(h, me, begun, lane, at, prev, json)
  if not begun or begun == '' or h.n == '' or h.n == me then return '' end
  local owner = '\1' .. binary(h.n) .. binary(h.i) .. struct.pack('<I8', num(h.e))
  local item = lane .. '\0\0\0' .. struct.pack('<I8I8I8', at, prev, #json) .. json
  return str(redis.call('PUBLISH', 'inbox:{' .. h.n .. '}', begun .. owner .. item))
end

-- === what people ask ===

local TAKEN = '^(%d+) (%d+) (%d+) (%d+) (%d+) (%S+) (%S+)$'

-- Whether an entry may be put into a lane, into the table of those that are known, and be counted and announced.
local function may_take(known, own, due, h, begun)
  local may = redis.acl_check_cmd
  if not may('HSET', known) or not may('HSET', own) then return false end
  if due ~= 0 and not countable(own) then return false end
  return not begun or begun == '' or h.n == '' or may('PUBLISH', CHANNEL)
end

-- The latest version by which a conversation that led here has led elsewhere; -1 without one.
local function fence_of(dd, place_)
  local known = redis.call('HGET', dd, place_)
  return known and num(string.match(known, TAKEN)) or -1
end

-- keys: own in dd
-- args: now user operator run hash weight reject json inputs_max bytes_max registered born me bell
--       user_most tenant_most (these two: since version 8) place route (these two: since version 11, and
--       only for a message of a conversation)
local function accept(keys, args)
  local own, inbox, dd = keys[1], keys[2], keys[3]
  local user, operator, run, hash, weight = args[2], args[3], args[4], args[5], num(args[6])
  -- Like `head`, in a table that does not grow: this and `append` are called for every turn.
  local v = redis.call('HMGET', own, 'n', 'i', 'e', 'u', 'cl', 'qi', 'ib', 'seq', 'le', 'g', 'ub')
  local h = {
    n = v[1] or '', i = v[2] or '', e = v[3] or '0', u = v[4] or nil, cl = v[5] or nil,
    qi = v[6] or nil, ib = v[7] or nil, seq = v[8] or nil, le = v[9] or nil, ub = v[11] or nil,
  }
  if v[10] or foreign(h, user, operator) then return { 'NOT_FOUND' } end
  local taken = redis.call('HGET', dd, run)
  if taken then
    local at, prev, seq, epoch, _, ended, known = string.match(taken, TAKEN)
    if known ~= hash then return { 'CONFLICT' } end
    return { 'OK', at, prev, h.n, h.i, h.e, seq, epoch, '1', ended == '-' and '0' or '1' }
  end
  if args[17] and fence_of(dd, args[17]) > num(args[18]) then return { 'BUSY' } end
  if h.cl == '1' then return { 'CLOSED' } end
  local open = redis.call('XLEN', inbox)
  if args[7] == '1' and open > 0 then return { 'BUSY' } end
  local bytes = num(h.ib) + weight
  if open >= num(args[9]) or bytes > num(args[10]) then return { 'TOO_MANY' } end
  if over(own, h.u or user, num(h.ub) + weight, args[15], args[16]) then return { 'QUOTA' } end
  local now = clock(args[1])
  if (h.n == '' and not fresh(args[11], now)) or (not h.u and not fresh(args[12], now)) then
    return { 'REGISTER', h.u and '1' or '0' }
  end
  local prev = num(h.qi)
  local at = math.max(prev + 1, now)
  local seq, epoch = h.seq or '0', h.le or '0'
  local stored = RECORD + #args[8]
  local uncounted, due = defer(h, num(h.ub) + stored)
  if not may_take(dd, own, due, h, args[14]) then return forbidden() end
  redis.call('XADD', inbox, id(at), 'r', run, 'w', str(weight), 'b', str(stored), 'j', args[8])
  local note = { str(at), str(prev), seq, epoch, str(now), '-', hash }
  redis.call('HSET', dd, run, table.concat(note, ' '))
  redis.call('HSET', own, 'qi', str(at), 'ib', str(bytes), 'ub', str(uncounted))
  if not h.u then redis.call('HSET', own, 'u', user, 'b', args[12]) end
  count(own, h.u or user, due)
  local rung = ring(h, args[13], args[14], '\0', at, prev, args[8])
  return { 'OK', str(at), str(prev), h.n, h.i, h.e, seq, epoch, '0', '0', rung }
end

-- keys: own ctl ap dd
-- args: now user operator id json create cancelled_run entries_max registered born me bell
local function control(keys, args)
  local own, lane, ap, dd = keys[1], keys[2], keys[3], keys[4]
  local user, operator = args[2], args[3]
  local h = head(own, 'n', 'i', 'e', 'u', 'qc', 'seq', 'le', 'g', 'ub')
  if h.g or foreign(h, user, operator) or (not h.u and args[6] ~= '1') then return { 'NOT_FOUND' } end
  local seq, epoch = h.seq or '0', h.le or '0'
  local heard = redis.call('HGET', ap, args[4])
  if heard then
    local at, prev = string.match(heard, '^(%d+) (%d+)$')
    local there = redis.call('XRANGE', lane, at .. '-0', at .. '-0')
    return { 'OK', at, prev, h.n, h.i, h.e, seq, epoch, '1', #there == 0 and '1' or '0' }
  end
  if args[7] ~= '' and redis.call('HEXISTS', dd, args[7]) == 0 then return { 'NOT_FOUND' } end
  if redis.call('XLEN', lane) >= num(args[8]) then return { 'TOO_MANY' } end
  local now = clock(args[1])
  if (h.n == '' and not fresh(args[9], now)) or (not h.u and not fresh(args[10], now)) then
    return { 'REGISTER', h.u and '1' or '0' }
  end
  local prev = num(h.qc)
  local at = math.max(prev + 1, now)
  local stored = RECORD + #args[5]
  local uncounted, due = defer(h, num(h.ub) + stored)
  if not may_take(ap, own, due, h, args[12]) then return forbidden() end
  redis.call('XADD', lane, id(at), 'k', args[4], 'b', str(stored), 'j', args[5])
  redis.call('HSET', ap, args[4], str(at) .. ' ' .. str(prev))
  redis.call('HSET', own, 'qc', str(at), 'ub', str(uncounted))
  if not h.u then redis.call('HSET', own, 'u', user, 'b', args[10]) end
  count(own, h.u or user, due)
  local rung = ring(h, args[11], args[12], '\1', at, prev, args[5])
  return { 'OK', str(at), str(prev), h.n, h.i, h.e, seq, epoch, '0', '0', rung }
end

-- keys: own dd; args: user operator run
local function find(keys, args)
  local h = head(keys[1], 'u')
  local taken = redis.call('HGET', keys[2], args[3])
  if not taken or foreign(h, args[1], args[2]) then return { 'NOT_FOUND' } end
  local _, _, seq, epoch, _, ended = string.match(taken, TAKEN)
  return { 'OK', seq, epoch, ended }
end

-- keys: own ctl ap; args: user operator id
local function find_control(keys, args)
  local h = head(keys[1], 'u', 'g')
  local taken = redis.call('HGET', keys[3], args[3])
  if not taken or h.g or foreign(h, args[1], args[2]) then return { 'NOT_FOUND' } end
  local at = string.match(taken, '^%d+')
  local there = redis.call('XRANGE', keys[2], at .. '-0', at .. '-0')
  return { 'OK', #there == 0 and '1' or '0' }
end

-- Like `find`; a run that is not there cannot come any more by an older version of the conversation's binding. The
-- note of that has the form of a message's, so that it expires like one.
-- keys: own dd; args: user operator run place version now
local function fence(keys, args)
  local h = head(keys[1], 'u', 'g')
  local found = find(keys, args)
  if found[1] == 'OK' or h.g or foreign(h, args[1], args[2]) then return found end
  if fence_of(keys[2], args[4]) < num(args[5]) then
    redis.call('HSET', keys[2], args[4], table.concat({ args[5], '0', '0', '0', str(clock(args[6])), '0', '-' }, ' '))
  end
  return found
end

-- Names and texts of a session's annotations.
local function annotations_of(own)
  local fields, found = redis.call('HGETALL', own), {}
  for n = 1, #fields, 2 do
    local name = string.match(fields[n], '^a:(.+)')
    if name then
      found[#found + 1] = name
      found[#found + 1] = fields[n + 1]
    end
  end
  return found
end

-- === blobs ===
--
-- `ix:{TENANT/SESSION}:blobs` has a session's table of blobs and uploads as JSON, which nodes read and write whole;
-- `ix:{TENANT/SESSION}:blob:BODY` the bytes of one upload, if they are stored here. They are called like the list of the
-- session's conversations, so that the rights that nodes were given for those suffice.

-- A time that does not come: the end of the year 9999.
local FOR_EVER = '253402300799000'

-- The names of a session's keys with something after its name, so that calls of earlier releases find them, too.
local function beside(own, rest)
  return 'ix:' .. string.match(own, '^own:(.*)$') .. ':' .. rest
end

-- keys: own blobs; args: now user operator
local function blobs(keys, args)
  local h = head(keys[1], 'u', 'g')
  if not h.u or h.g or foreign(h, args[2], args[3]) then return { 'NOT_FOUND' } end
  return { 'OK', str(clock(args[1])), redis.call('GET', keys[2]) or '' }
end

-- Replaces a table, if it is still as whoever read it saw it; '' stands for none. In the same step the bytes of a new
-- blob, if they are stored here, stop to end by themselves, and those that the table names no longer are deleted.
-- keys: own blobs; args: old new bytes adds user_most tenant_most kept dropped…
local function reblob(keys, args)
  local h = head(keys[1], 'u', 'g', 'cl', 'n', 'ub', 'bb')
  if not h.u or h.g then return { 'NOT_FOUND' } end
  if args[4] == '1' and h.cl == '1' then return { 'CLOSED' } end
  local found = redis.call('GET', keys[2]) or ''
  if found == args[2] then return { 'OK' } end
  if found ~= args[1] then return { 'AGAIN' } end
  local gain = num(args[3]) - num(h.bb)
  if gain > 0 and over(keys[1], h.u, num(h.ub) + gain, args[5], args[6]) then return { 'QUOTA' } end
  local uncounted, due = defer(h, num(h.ub) + gain)
  if args[2] == '' then
    redis.call('DEL', keys[2])
  else
    redis.call('SET', keys[2], args[2])
  end
  redis.call('HSET', keys[1], 'bb', args[3], 'ub', str(uncounted))
  count(keys[1], h.u, due)
  if args[7] ~= '' then redis.call('PEXPIREAT', beside(keys[1], 'blob:' .. args[7]), FOR_EVER) end
  for at = 8, #args do redis.call('DEL', beside(keys[1], 'blob:' .. args[at])) end
  return { 'OK' }
end

-- Deletes the table of a session, and the bytes that it names if they are stored here.
local function wipe_blobs(own)
  local key = beside(own, 'blobs')
  local text = redis.call('GET', key)
  if not text then return end
  local read, table_ = pcall(cjson.decode, text)
  if read then
    for _, blob in pairs(table_.blobs or {}) do redis.call('DEL', beside(own, 'blob:' .. blob.body)) end
    for body in pairs(table_.uploads or {}) do redis.call('DEL', beside(own, 'blob:' .. body)) end
  end
  redis.call('DEL', key)
end

-- Whether `wipe_blobs` may run.
local function may_wipe_blobs(own)
  local key = beside(own, 'blobs')
  return redis.acl_check_cmd('GET', key) and redis.acl_check_cmd('DEL', key)
end

-- Takes away everything of a session but that its name is used.
-- keys: own in ctl ap dd snap log
local function wipe(keys, h)
  local named = annotations_of(keys[1])
  wipe_blobs(keys[1])
  redis.call('DEL', keys[2], keys[3], keys[4], keys[5], keys[6], keys[7])
  for n = 1, #named, 2 do redis.call('HDEL', keys[1], 'a:' .. named[n]) end
  redis.call('HDEL', keys[1], 'c', 'ib', 'seq', 'le', 'fl', 'ss', 'se', 'lb', 'sb', 'ub', 'bb')
  redis.call('HSET', keys[1], 'g', '1', 'n', '', 'i', '', 'e', str(num(h.e) + 1), 'cl', '1')
  count(keys[1], h.u, num(h.ub) - num(h.lb) - num(h.sb) - num(h.bb))
end

-- Its line in the indexes is stale from here on, and taken out when a list comes upon it.
-- keys: own in ctl ap dd snap log; args: user operator
local function delete(keys, args)
  local h = head(keys[1], 'u', 'cl', 'e', 'g', 'lb', 'sb', 'ub', 'bb')
  if not h.u or foreign(h, args[1], args[2]) then return { 'NOT_FOUND' } end
  if h.g then return { 'OK' } end
  local open = redis.call('XLEN', keys[2]) > 0 or redis.call('XLEN', keys[3]) > 0
  if h.cl ~= '1' or open then return { 'BUSY' } end
  if not may_wipe_blobs(keys[1]) then return forbidden() end
  wipe(keys, h)
  return { 'OK' }
end

-- Whether nobody owns the session, nothing waits in it, and nothing was put into it, nor was it owned by whoever wrote
-- last, since a time.
local function rests(h, inbox, lane, before)
  if not h.u or h.g or h.n ~= '' then return false end
  if redis.call('XLEN', inbox) > 0 or redis.call('XLEN', lane) > 0 then return false end
  return math.max(num(h.qi), num(h.qc), num(h.le)) < before
end

-- Seconds since 1970 of a fact's time (RFC 3339, UTC); days by the rule for a calendar that begins in March.
local function seconds(text)
  local y, m, d, hour, min, sec = string.match(text, '^(%d+)-(%d+)-(%d+)T(%d+):(%d+):(%d+)')
  y, m = tonumber(y), tonumber(m)
  if m <= 2 then y, m = y - 1, m + 12 end
  local leaps = math.floor(y / 4) - math.floor(y / 100) + math.floor(y / 400)
  local days = 365 * y + leaps + math.floor((153 * (m - 3) + 2) / 5) + tonumber(d) - 719469
  return ((days * 24 + tonumber(hour)) * 60 + tonumber(min)) * 60 + tonumber(sec)
end

-- keys: own in ctl; args: before
local function idle(keys, args)
  local h = head(keys[1], 'u', 'g', 'n', 'qi', 'qc', 'le')
  return { rests(h, keys[2], keys[3], num(args[1])) and '1' or '0' }
end

-- Deletes a session that nobody has used since a time; whose it was, and when it was made, for the indexes.
-- keys: own in ctl ap dd snap log; args: before
local function forget(keys, args)
  local h = head(keys[1], 'u', 'b', 'g', 'n', 'e', 'qi', 'qc', 'le', 'seq', 'fl', 'lb', 'sb', 'ub', 'bb')
  if not h.u or h.g then return { 'NOT_FOUND' } end
  local before = num(args[1])
  if not rests(h, keys[2], keys[3], before) then return { 'BUSY' } end
  if num(h.seq) > num(h.fl) then
    local last = redis.call('XRANGE', keys[7], id(h.seq), id(h.seq))[1]
    local time = last and string.match(field(last, 'j'), '"time":"([^"]+)"')
    if not time or seconds(time) >= math.floor(before / 1000) then return { 'BUSY' } end
  end
  if not may_wipe_blobs(keys[1]) then return forbidden() end
  wipe(keys, h)
  return { 'OK', h.u, h.b }
end

-- A part of the ids at a time: there may be many, and nobody is served meanwhile.
-- keys: own dd; args: before cursor count
local function expire(keys, args)
  local h = head(keys[1], 'fl')
  local before, floor = num(args[1]), num(h.fl)
  local found = redis.call('HSCAN', keys[2], args[2], 'COUNT', args[3])
  for at = 1, #found[2], 2 do
    local _, _, _, _, accepted, ended = string.match(found[2][at + 1], TAKEN)
    if num(accepted) < before and ended ~= '-' and num(ended) <= floor then
      redis.call('HDEL', keys[2], found[2][at])
    end
  end
  return { found[1] }
end

-- === ownership ===

-- The state that is kept and the facts since; of the head: u cl seq le fl ss se.
local function state(h, snap, log)
  local facts, kept = {}, {}
  if num(h.seq) > num(h.ss) then
    for n, entry in ipairs(redis.call('XRANGE', log, id(num(h.ss) + 1), id(num(h.seq)))) do
      facts[n] = field(entry, 'j')
    end
  end
  if h.ss then kept = { h.ss, h.se, redis.call('GET', snap) or '' } end
  return { h.u and not h.g and { h.u } or {}, h.cl or '0', h.seq or '0', h.le or '0', h.fl or '0', kept, facts }
end

-- keys: own in ctl ls snap log
-- args: now node life nonce seen_node seen_life seen_epoch floor registered
local function claim(keys, args)
  local own = keys[1]
  local node, life, nonce = args[2], args[3], args[4]
  -- Like `head`: of a dead node thousands are claimed at once.
  local v = redis.call(
    'HMGET', own, 'n', 'i', 'e', 'c', 'qi', 'qc', 'lv', 'u', 'cl', 'seq', 'le', 'fl', 'ss', 'se', 'g'
  )
  local h = {
    n = v[1] or '', i = v[2] or '', e = v[3] or '0', c = v[4] or nil, qi = v[5] or '0',
    qc = v[6] or '0', lv = v[7] or '0', u = v[8] or nil, cl = v[9] or nil, seq = v[10] or nil,
    le = v[11] or nil, fl = v[12] or nil, ss = v[13] or nil, se = v[14] or nil, g = v[15] or nil,
  }
  if h.c ~= nonce or h.n ~= node or h.i ~= life then
    if h.n ~= args[5] or h.i ~= args[6] or h.e ~= args[7] then return { 'HELD', h.n, h.i, h.e } end
    local now = clock(args[1])
    if not fresh(args[9], now) then return { 'REGISTER' } end
    h.e = str(math.max(num(h.e) + 1, now, num(args[8]) + 1))
    redis.call('HSET', own, 'e', h.e, 'c', nonce, 'n', node, 'i', life)
  end
  -- Where nothing was ever put, nothing is looked for.
  local inputs = h.qi ~= '0' and waiting(keys[2], '0') or {}
  local controls = h.qc ~= '0' and waiting(keys[3], '0') or {}
  local listeners = h.lv ~= '0' and redis.call('HGETALL', keys[4]) or {}
  return { 'OK', h.e, h.qi, h.qc, h.lv, inputs, controls, listeners, state(h, keys[5], keys[6]) }
end

-- keys: own in ctl; args: epoch nonce tail drain now registered (these two: since version 3)
local function release(keys, args)
  local h = head(keys[1], 'n', 'i', 'e', 'c', 'seq', 'u', 'ub')
  if fenced(h, args[1], args[2]) then return { 'FENCED' } end
  -- What is left lies under nobody's name in an index, if that was written a moment ago.
  if args[4] == '1' and args[6] and not fresh(args[6], clock(args[5])) then return { 'REGISTER' } end
  local left = redis.call('XLEN', keys[2]) > 0 or redis.call('XLEN', keys[3]) > 0
  if (h.seq or '0') ~= args[3] or (args[4] ~= '1' and left) then return { 'PENDING' } end
  redis.call('HSET', keys[1], 'n', '', 'i', '', 'ub', '0')
  count(keys[1], h.u, num(h.ub))
  return { 'OK', h.n, h.i, left and '1' or '0' }
end

-- keys: own; args: now epoch nonce tail node life new_nonce registered
local function transfer(keys, args)
  local h = head(keys[1], 'n', 'i', 'e', 'c', 'seq')
  local node, life, nonce = args[5], args[6], args[7]
  if h.c == nonce and h.n == node and h.i == life then return { 'OK', h.e } end
  if fenced(h, args[2], args[3]) then return { 'FENCED' } end
  if (h.seq or '0') ~= args[4] then return { 'ORDER' } end
  local now = clock(args[1])
  if not fresh(args[8], now) then return { 'REGISTER' } end
  local epoch = str(math.max(num(h.e) + 1, now))
  redis.call('HSET', keys[1], 'e', epoch, 'c', nonce, 'n', node, 'i', life)
  return { 'OK', epoch }
end

-- How sweeps looked before version 5.
-- keys: own in ctl; args: now
local function look(keys, args)
  local h = head(keys[1], 'n', 'i', 'e')
  local open = redis.call('XLEN', keys[2]) > 0 or redis.call('XLEN', keys[3]) > 0
  return { h.n, h.i, h.e, open and '1' or '0', str(clock(args[1])) }
end

-- === the log ===

-- Whether the log has exactly these facts already. The epoch stands in the JSON, and only one nonce
-- ever wrote under it.
local function written(log, after, facts)
  local there = redis.call('XRANGE', log, id(after + 1), id(after + #facts))
  if #there ~= #facts then return false end
  for at, entry in ipairs(there) do
    if field(entry, 'j') ~= facts[at].json then return false end
  end
  return true
end

-- Removes facts behind the end of the log. Before version 9 a call that lost a right midway left such facts, which were
-- never acknowledged, and refuse every later fact of their places. Returns whether there were any.
local function remove_tail(log, seq)
  if #redis.call('XRANGE', log, id(seq + 1), '+', 'COUNT', '1') == 0 then return false end
  if not redis.acl_check_cmd('DEL', log) or not redis.acl_check_cmd('XADD', log) then return false end
  local facts = redis.call('XRANGE', log, '-', id(seq))
  -- Only a stream of its own forgets the last place that was ever used in it.
  redis.call('DEL', log)
  for _, entry in ipairs(facts) do redis.call('XADD', log, entry[1], unpack(entry[2])) end
  return true
end

-- Whether `append` may write the rest once it has added its facts.
local function may_append(own, inbox, lane, dd, ends, answers, annotations, bytes)
  local may = redis.acl_check_cmd
  if not may('HSET', own) or (next(annotations) and not may('HDEL', own)) then return false end
  local function lane_may(key) return may('XDEL', key) and may('XLEN', key) and may('DEL', key) end
  if #ends > 0 and not (lane_may(inbox) and may('HGET', dd) and may('HSET', dd)) then return false end
  if #answers > 0 and not (lane_may(lane) and may('XRANGE', lane)) then return false end
  return (bytes < UNCOUNTED_MOST and #answers == 0) or countable(own)
end

-- Adds a fact; returns an error, and has written nothing, where the server refuses it.
local function add(log, seq, epoch, fact)
  local added = redis.pcall('XADD', log, id(seq), 'e', epoch, 'w', fact.weight, 'j', fact.json)
  if type(added) ~= 'table' or not added.err then return nil end
  if not remove_tail(log, seq - 1) then return added end
  redis.call('XADD', log, id(seq), 'e', epoch, 'w', fact.weight, 'j', fact.json)
end

-- keys: own log in ctl dd ls
-- args: epoch nonce after known closed facts {weight json} ends {place run} answers {place} annotations {name text}
-- Nodes before version 10 pass no annotations; an empty text removes one. The last one of a name counts.
local function append(keys, args)
  local own, log, inbox, lane, dd = keys[1], keys[2], keys[3], keys[4], keys[5]
  local v = redis.call('HMGET', own, 'n', 'i', 'e', 'c', 'seq', 'qi', 'qc', 'ib', 'fl', 'lv', 'u', 'lb', 'ub')
  local h = {
    n = v[1] or '', i = v[2] or '', e = v[3] or '0', c = v[4] or nil, seq = v[5] or nil,
    qi = v[6] or nil, qc = v[7] or nil, ib = v[8] or nil, fl = v[9] or nil, lv = v[10] or nil,
    u = v[11] or nil, lb = v[12] or nil, ub = v[13] or nil,
  }
  if fenced(h, args[1], args[2]) then return { 'FENCED' } end
  local after, seq = num(args[3]), num(h.seq)
  local at = 6
  local function next_()
    at = at + 1
    return args[at - 1]
  end
  local facts, ends, answers, annotations = {}, {}, {}, {}
  for n = 1, num(next_()) do facts[n] = { weight = next_(), json = next_() } end
  for n = 1, num(next_()) do ends[n] = { place = next_(), run = next_() } end
  for n = 1, num(next_()) do answers[n] = next_() end
  for _ = 1, num(next_()) do
    local name = 'a:' .. next_()
    annotations[name] = next_()
  end

  local within = #facts > 0 and after + #facts <= seq and after >= num(h.fl)
  if not (within and written(log, after, facts)) then
    if after ~= seq then return { 'ORDER' } end
    local bytes, grown, moved = num(h.ib), 0, math.abs(num(h.ub))
    for _, last in ipairs(ends) do
      local there = redis.call('XRANGE', inbox, last.place .. '-0', last.place .. '-0')
      if #there == 0 then return { 'GONE', last.place } end
      last.weight, last.stored = num(field(there[1], 'w')), num(field(there[1], 'b'))
      moved = moved + last.stored
    end
    for _, fact in ipairs(facts) do moved = moved + PLACED + #fact.json end
    local may = may_append(own, inbox, lane, dd, ends, answers, annotations, moved)
    if not may or ((h.lv or '0') ~= args[4] and not redis.acl_check_cmd('HGETALL', keys[6])) then return forbidden() end
    local changes = {}
    local function set(name, value)
      changes[#changes + 1] = name
      changes[#changes + 1] = value
    end
    local held = h.lb and num(h.lb) or estimate(log, seq, num(h.fl))
    for _, fact in ipairs(facts) do
      seq = seq + 1
      held = held + PLACED + #fact.json
      local refused = add(log, seq, args[1], fact)
      if refused then return refused end
    end
    if #facts > 0 then
      set('seq', str(seq))
      set('le', args[1])
      set('lb', str(held))
      grown = held - num(h.lb)
    end
    for _, last in ipairs(ends) do
      if redis.call('XDEL', inbox, last.place .. '-0') == 1 then
        bytes, grown = bytes - last.weight, grown - last.stored
      end
      local taken = redis.call('HGET', dd, last.run)
      if taken then
        local note = string.gsub(taken, '^(%d+ %d+ %d+ %d+ %d+) %S+', '%1 ' .. str(seq))
        redis.call('HSET', dd, last.run, note)
      end
    end
    if #ends > 0 then
      set('ib', str(bytes))
      clear(inbox)
    end
    for _, answered in ipairs(answers) do
      local there = redis.call('XRANGE', lane, answered .. '-0', answered .. '-0')
      if #there > 0 then grown = grown - num(field(there[1], 'b')) end
      redis.call('XDEL', lane, answered .. '-0')
    end
    if #answers > 0 then clear(lane) end
    if args[5] ~= '' then set('cl', args[5]) end
    for name, text in pairs(annotations) do
      if text == '' then redis.call('HDEL', own, name) else set(name, text) end
    end
    local uncounted, due = defer(h, num(h.ub) + grown)
    if grown ~= 0 then set('ub', str(uncounted)) end
    if #changes > 0 then redis.call('HSET', own, unpack(changes)) end
    if grown ~= 0 then count(own, h.u, due) end
  end
  local version = h.lv or '0'
  local reply = { 'OK', str(seq), h.qi or '0', h.qc or '0', version }
  if version ~= args[4] then reply[6] = redis.call('HGETALL', keys[6]) end
  return reply
end

-- keys: own snap log
local function open(keys)
  local h = head(keys[1], 'n', 'i', 'e', 'u', 'cl', 'seq', 'le', 'fl', 'ss', 'se', 'g')
  return { h.n, h.i, h.e, state(h, keys[2], keys[3]) }
end

-- keys: own log; args: after limit bytes_max
local function read(keys, args)
  local h = head(keys[1], 'seq', 'le', 'fl')
  local after, left, room = math.max(num(args[1]), num(h.fl)), num(args[2]), num(args[3])
  local facts, bytes, full, last = {}, 0, false, id(num(h.seq))
  while left > 0 and not full do
    -- Not all at once: the room may be full long before the limit is met.
    local part = redis.call('XRANGE', keys[2], id(after + 1), last, 'COUNT', str(math.min(left, 32)))
    for _, entry in ipairs(part) do
      bytes = bytes + num(field(entry, 'w'))
      full = full or (bytes > room and #facts > 0)
      if not full then
        facts[#facts + 1] = field(entry, 'j')
        after = after + 1
      end
    end
    left = left - #part
    full = full or #part == 0
  end
  return { h.seq or '0', h.le or '0', h.fl or '0', facts }
end

-- keys: own in ctl; args: after control_after
local function inbox(keys, args)
  local h = head(keys[1], 'qi', 'qc')
  return { h.qi or '0', h.qc or '0', waiting(keys[2], args[1]), waiting(keys[3], args[2]) }
end

-- keys: own snap; args: epoch nonce seq at_epoch state
local function keep(keys, args)
  local h = head(keys[1], 'n', 'e', 'c', 'seq', 'ss', 'sb', 'u', 'ub')
  if fenced(h, args[1], args[2]) then return { 'FENCED' } end
  local at = num(args[3])
  if at <= num(h.seq) and (not h.ss or num(h.ss) < at) then
    local stored = PLACED + #args[5]
    redis.call('SET', keys[2], args[5])
    local uncounted, due = defer(h, num(h.ub) + stored - num(h.sb))
    redis.call('HSET', keys[1], 'ss', args[3], 'se', args[4], 'sb', str(stored), 'ub', str(uncounted))
    count(keys[1], h.u, due)
  end
  return { 'OK' }
end

-- The bytes of the facts after a place and up to another; of many an estimate by the first of them.
local function bytes_of(log, after, upto)
  local bytes, looked, all = 0, 0, upto - after
  while looked < math.min(all, COUNTED_MOST) and bytes < COUNTED_BYTES_MOST do
    local part = redis.call('XRANGE', log, id(after + looked + 1), id(upto), 'COUNT', str(SAMPLE))
    if #part == 0 then break end
    for _, entry in ipairs(part) do bytes = bytes + PLACED + #field(entry, 'j') end
    looked = looked + #part
  end
  if looked == 0 or looked >= all then return bytes end
  return math.floor(bytes / looked * all)
end

-- keys: own log; args: epoch nonce upto
local function trim(keys, args)
  local h = head(keys[1], 'n', 'e', 'c', 'seq', 'fl', 'ss', 'lb', 'u', 'ub')
  if fenced(h, args[1], args[2]) then return { 'FENCED' } end
  local upto, floor, seq, held = math.min(num(args[3]), num(h.ss)), num(h.fl), num(h.seq), num(h.lb)
  if upto > floor then
    local gone = 0
    if h.lb and seq - upto <= upto - floor then
      -- What stays is less than what goes: what was estimated before, here or of an earlier release, is right again.
      gone = held - bytes_of(keys[2], upto, seq)
    elseif h.lb then
      gone = math.min(held, bytes_of(keys[2], floor, upto))
    end
    redis.call('XTRIM', keys[2], 'MINID', id(upto + 1))
    redis.call('HSET', keys[1], 'fl', str(upto))
    if gone ~= 0 then
      local uncounted, due = defer(h, num(h.ub) - gone)
      redis.call('HSET', keys[1], 'lb', str(held - gone), 'ub', str(uncounted))
      count(keys[1], h.u, due)
    end
  end
  return { 'OK' }
end

-- === who listens ===

-- keys: own ls; args: node stamp nodes_max {pruned_node pruned_stamp}
local function listen(keys, args)
  local ls, node, stamp = keys[2], args[1], num(args[2])
  local h = head(keys[1], 'n', 'i', 'e', 'seq', 'le', 'lv')
  for at = 4, #args, 2 do
    if redis.call('HGET', ls, args[at]) == args[at + 1] then redis.call('HDEL', ls, args[at]) end
  end
  local known = redis.call('HGET', ls, node)
  if not known and redis.call('HLEN', ls) >= num(args[3]) then
    return { 'TOO_MANY', redis.call('HGETALL', ls) }
  end
  if not known or num(known) < stamp then
    redis.call('HSET', ls, node, args[2])
    redis.call('HSET', keys[1], 'lv', str(num(h.lv) + 1))
  end
  return { 'OK', h.n, h.i, h.e, h.seq or '0', h.le or '0' }
end

-- keys: own ls; args: node stamp
local function unlisten(keys, args)
  local known = redis.call('HGET', keys[2], args[1])
  if known and num(known) <= num(args[2]) then
    redis.call('HDEL', keys[2], args[1])
    redis.call('HINCRBY', keys[1], 'lv', 1)
  end
  return { 'OK' }
end

-- === leases: `node:{N}` has, for each incarnation of a node, until when it lives ===

-- Whether a lease until then runs.
local function runs(until_, now)
  return until_ > now and until_ <= now + LEASE_MOST
end

-- keys: node; args: now given life ttl fresh enrolled
local function renew(keys, args)
  local now, life = clock(args[1]), args[2]
  local lives = redis.call('HGETALL', keys[1])
  local held, last = false, 0
  for at = 1, #lives, 2 do
    local until_ = num(lives[at + 1])
    -- Its holder lives, though the clock was set back since: it has the same lease by the clock as it is now.
    held = held or (lives[at] == life and until_ > now)
    if runs(until_, now) then
      last = math.max(last, until_)
    else
      redis.call('HDEL', keys[1], lives[at])
    end
  end
  if args[4] == '1' then
    if not fresh(args[5], now) then return { 'REGISTER' } end
  elseif not held then
    return { 'LOST' }
  end
  local until_ = now + num(args[3])
  redis.call('HSET', keys[1], life, str(until_))
  -- A test's time is not the server's, so what it leases does not run out by itself.
  if args[1] == '0' then redis.call('PEXPIREAT', keys[1], str(math.max(last, until_))) end
  return { 'OK', str(now) }
end

-- keys: node; args: life
local function retire(keys, args)
  redis.call('HDEL', keys[1], args[1])
  return { 'OK' }
end

-- keys: node; args: now
local function lease(keys, args)
  local now, last = clock(args[1]), 0
  for _, text in ipairs(redis.call('HVALS', keys[1])) do
    local until_ = num(text)
    if runs(until_, now) then last = math.max(last, until_) end
  end
  if last <= now then return {} end
  return { str(last - now) }
end

local function lives(node, life, now)
  return runs(num(redis.call('HGET', node, life) or '0'), now)
end

-- keys: node; args: now life
local function leased(keys, args)
  return { lives(keys[1], args[2], clock(args[1])) and '1' or '0' }
end

-- === what a sweep looks through ===

-- What an incarnation registered at a time or later, if it lives no more; the oldest first.
-- keys: node nidx; args: now life from offset count
local function orphans(keys, args)
  if lives(keys[1], args[2], clock(args[1])) then return { '1', {} } end
  local page = { 'BYSCORE', 'LIMIT', args[4], args[5], 'WITHSCORES' }
  return { '0', redis.call('ZRANGE', keys[2], args[3], '+inf', unpack(page)) }
end

-- keys: nidx; args: now session ... (one, before version 3)
local function register(keys, args)
  local now, stamps = clock(args[1]), {}
  for at = 2, #args do
    local known = redis.call('ZSCORE', keys[1], args[at])
    -- Later than before, so that whoever clears the earlier one away leaves this one.
    local stamp = str(math.max(now, num(known or '0') + 1))
    redis.call('ZADD', keys[1], stamp, args[at])
    stamps[at - 1] = stamp
  end
  return stamps
end

-- keys: nidx; args: session stamp
local function unregister(keys, args)
  if num(redis.call('ZSCORE', keys[1], args[1]) or '0') == num(args[2]) then
    redis.call('ZREM', keys[1], args[1])
  end
  return { 'OK' }
end

-- keys: lives; args: now life
local function enroll(keys, args)
  local known = redis.call('HGET', keys[1], args[2])
  local stamp = str(math.max(clock(args[1]), num(known or '0') + 1))
  redis.call('HSET', keys[1], args[2], stamp)
  return { stamp }
end

-- One that was just enrolled may be about to live.
-- keys: lives; args: now life stamp
local function strike(keys, args)
  local known = redis.call('HGET', keys[1], args[2])
  if known == args[3] and not fresh(known, clock(args[1])) then redis.call('HDEL', keys[1], args[2]) end
  return { 'OK' }
end

-- keys: lives
local function enrolled(keys)
  return redis.call('HGETALL', keys[1])
end

-- === which sessions there are ===

-- keys: ix ixu; args: now session
local function enter(keys, args)
  local stamp = clock(args[1])
  local line = string.format('%016.0f', stamp) .. args[2]
  redis.call('ZADD', keys[1], '0', line)
  redis.call('ZADD', keys[2], '0', line)
  return { str(stamp) }
end

-- keys: ix; args: now before count
local function lines(keys, args)
  local found = redis.call('ZREVRANGEBYLEX', keys[1], args[2], '-', 'LIMIT', '0', args[3])
  return { str(clock(args[1])), found }
end

-- Lines in the order of their making.
-- keys: ix; args: after count
local function walk(keys, args)
  return redis.call('ZRANGE', keys[1], args[1], '+', 'BYLEX', 'LIMIT', '0', args[2])
end

-- keys: ix; args: line
local function erase(keys, args)
  redis.call('ZREM', keys[1], args[1])
  return { 'OK' }
end

-- keys: own in
local function summary(keys)
  local h = head(keys[1], 'u', 'b', 'cl', 'seq', 'g')
  if not h.u or h.g then return {} end
  local open = redis.call('XLEN', keys[2])
  return { h.u, h.b, h.cl or '0', h.seq or '0', str(open), unpack(annotations_of(keys[1])) }
end

-- keys: tenants; args: tenant
local function settle(keys, args)
  redis.call('SADD', keys[1], args[1])
  return { 'OK' }
end

-- keys: tenants
local function tenants(keys)
  return redis.call('SMEMBERS', keys[1])
end

-- === conversations ===
--
-- `ix:{c:BUCKET}:NAME` has the row of a conversation as JSON, which nodes read and write whole; `ix:{c:BUCKET}` the
-- times at which its rows want to be tended. `ix:{TENANT/SESSION}` lists the conversations that may be bound to a
-- session, each with the generation of the bind.

-- keys: row; args: now
local function row(keys, args)
  local now = str(clock(args[1]))
  local found = redis.call('GET', keys[1])
  if not found then return { now } end
  return { now, found }
end

-- Rows of several conversations as they are at one moment: '1' and the text, or '0', for each. Those after the first lie
-- in other slots.
-- keys: row; args: other rows
local function rows(keys, args)
  local found = {}
  local function add(key)
    local text = redis.call('GET', key)
    found[#found + 1] = text and '1' or '0'
    if text then found[#found + 1] = text end
  end
  add(keys[1])
  for _, key in ipairs(args) do add(key) end
  return found
end

-- Replaces a row, if it is still as whoever read it saw it; '' stands for no row, and for no time.
-- keys: row times; args: old new member time
local function bind(keys, args)
  local found = redis.call('GET', keys[1]) or ''
  if found == args[2] then return { '1' } end
  if found ~= args[1] then return { '0' } end
  if args[4] == '' then
    redis.call('ZREM', keys[2], args[3])
  else
    redis.call('ZADD', keys[2], args[4], args[3])
  end
  if args[2] == '' then
    redis.call('DEL', keys[1])
  else
    redis.call('SET', keys[1], args[2])
  end
  return { '1' }
end

-- The rows that are due, those first that have waited longest, each with its time.
-- keys: times; args: now count
local function due(keys, args)
  local now = str(clock(args[1]))
  return redis.call('ZRANGE', keys[1], '0', now, 'BYSCORE', 'LIMIT', '0', args[2], 'WITHSCORES')
end

-- keys: list; args: generation member
local function list(keys, args)
  redis.call('ZADD', keys[1], 'GT', args[1], args[2])
  return { 'OK' }
end

-- keys: list; args: generation member
local function unlist(keys, args)
  if num(redis.call('ZSCORE', keys[1], args[2]) or '0') == num(args[1]) then redis.call('ZREM', keys[1], args[2]) end
  return { 'OK' }
end

-- keys: list
local function listed(keys)
  return redis.call('ZRANGE', keys[1], '0', '-1', 'WITHSCORES')
end

-- === the rest ===

-- keys: val
local function get(keys)
  local found = redis.call('HMGET', keys[1], 'v', 'd')
  if not found[1] then return { '0' } end
  return { found[1], found[2] }
end

-- keys: val; args: expect set value
local function put(keys, args)
  local version = num(redis.call('HGET', keys[1], 'v') or '0')
  if version == num(args[1]) then
    if args[2] == '1' then
      redis.call('HSET', keys[1], 'v', str(version + 1), 'd', args[3])
    else
      redis.call('DEL', keys[1])
    end
  end
  return get(keys)
end

-- Which data this is, and which process has it: what a wiped or restarted server gives itself away by.
-- keys: realm; args: candidate
local function realm(keys, args)
  redis.call('SET', keys[1], args[1], 'NX')
  -- Who may not see this, or is shown nothing of it, notices a restart by what it has lost alone.
  local server = redis.pcall('INFO', 'server')
  local run = type(server) == 'string' and string.match(server, 'run_id:(%x+)')
  return { redis.call('GET', keys[1]), run or '' }
end

-- Something to wait for: whatever was written before it is where this is.
-- keys: mark; args: text
local function mark(keys, args)
  redis.call('SET', keys[1], args[1])
  return { 'OK' }
end

-- A rate that nodes share (docs/ownership.md 4.4): when its bucket is full again, in microseconds. What was taken is
-- added, and never refused: it is done. The answer is how far ahead that is.
-- keys: rate; args: cost most
local function owe(keys, args)
  local time = redis.call('TIME')
  local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
  local full = math.max(num(redis.call('GET', keys[1]) or '0'), now) + num(args[1])
  -- A clock that was set back makes nobody wait for ever.
  full = math.min(full, now + num(args[2]))
  local ahead = full - now
  -- A bucket that is full again is like one that never was.
  redis.call('SET', keys[1], str(full), 'PX', str(math.ceil(ahead / 1000) + 1))
  return { str(ahead) }
end

local function version()
  return { str(VERSION) }
end

local function define(name, callback, ...)
  redis.register_function { function_name = 'turnway1_' .. name, callback = callback, flags = { ... } }
end

-- It counts bytes in a slot that is not its session's.
local COUNTS = 'allow-cross-slot-keys'

-- New inputs and sessions are refused by a server without room, and rates are not shared; what is under way may end.
define('accept', accept, COUNTS)
define('owe', owe)
define('create', control, COUNTS)
define('control', control, 'allow-oom', COUNTS)
define('expire', expire, 'allow-oom')
define('fence', guarded(fence, false, { 'HSET', 2 }), 'allow-oom')
local wipes = { 'DEL', 2, 'DEL', 3, 'DEL', 4, 'DEL', 5, 'DEL', 6, 'DEL', 7, 'HDEL', 1, 'HSET', 1 }
define('delete', guarded(delete, true, wipes), 'allow-oom', COUNTS)
define('forget', guarded(forget, true, wipes), 'allow-oom', COUNTS)
local claims = { 'HSET', 1, 'XRANGE', 2, 'XRANGE', 3, 'HGETALL', 4, 'GET', 5, 'XRANGE', 6 }
define('claim', guarded(claim, false, claims), 'allow-oom')
define('release', guarded(release, true, { 'HSET', 1 }), 'allow-oom', COUNTS)
define('transfer', transfer, 'allow-oom')
define('append', append, 'allow-oom', COUNTS)
define('keep', guarded(keep, true, { 'SET', 2, 'HSET', 1 }), 'allow-oom', COUNTS)
define('trim', guarded(trim, true, { 'XTRIM', 2, 'HSET', 1 }), 'allow-oom', COUNTS)
define('listen', guarded(listen, false, { 'HDEL', 2, 'HLEN', 2, 'HGETALL', 2, 'HSET', 2, 'HSET', 1 }), 'allow-oom')
define('unlisten', guarded(unlisten, false, { 'HDEL', 2, 'HINCRBY', 1 }), 'allow-oom')
define('renew', guarded(renew, false, { 'HDEL', 1, 'HSET', 1, 'PEXPIREAT', 1 }), 'allow-oom')
define('retire', retire, 'allow-oom')
define('register', guarded(register, false, { 'ZSCORE', 1, 'ZADD', 1 }), 'allow-oom')
define('unregister', unregister, 'allow-oom')
define('enroll', enroll, 'allow-oom')
define('strike', strike, 'allow-oom')
define('enter', guarded(enter, false, { 'ZADD', 1, 'ZADD', 2 }), 'allow-oom')
define('erase', erase, 'allow-oom')
define('settle', settle, 'allow-oom')
define('put', guarded(put, false, { 'HSET', 1, 'DEL', 1, 'HMGET', 1 }), 'allow-oom')
define('realm', guarded(realm, false, { 'SET', 1, 'GET', 1 }), 'allow-oom')
define('mark', mark, 'allow-oom')
local binds = { 'GET', 1, 'SET', 1, 'DEL', 1, 'ZADD', 2, 'ZREM', 2 }
define('bind', guarded(bind, false, binds))
define('rebind', guarded(bind, false, binds), 'allow-oom')
define('list', list)
local reblobs = { 'SET', 2, 'DEL', 2, 'PEXPIREAT', 2, 'HSET', 1 }
define('reblob', guarded(reblob, true, reblobs), COUNTS)
define('shrink_blobs', guarded(reblob, true, reblobs), 'allow-oom', COUNTS)
define('unlist', guarded(unlist, false, { 'ZSCORE', 1, 'ZREM', 1 }), 'allow-oom')

define('find', find, 'no-writes')
define('find_control', find_control, 'no-writes')
define('look', look, 'no-writes')
define('open', open, 'no-writes')
define('read', read, 'no-writes')
define('inbox', inbox, 'no-writes')
define('lease', lease, 'no-writes')
define('leased', leased, 'no-writes')
define('orphans', orphans, 'no-writes')
define('enrolled', enrolled, 'no-writes')
define('lines', lines, 'no-writes')
define('walk', walk, 'no-writes')
define('idle', idle, 'no-writes')
define('summary', summary, 'no-writes')
define('tenants', tenants, 'no-writes')
define('get', get, 'no-writes')
define('row', row, 'no-writes')
define('rows', rows, 'no-writes', 'allow-cross-slot-keys')
define('blobs', blobs, 'no-writes')
define('due', due, 'no-writes')
define('listed', listed, 'no-writes')
define('version', version, 'no-writes')

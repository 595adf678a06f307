local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local tokens, dollars = tonumber(ARGV[1]), tonumber(ARGV[2])
local ends = {}
for place, key in ipairs(KEYS) do
  local window, step = tonumber(ARGV[4 * place - 1]), tonumber(ARGV[4 * place])
  local most_tokens, most_dollars = tonumber(ARGV[4 * place + 1]), tonumber(ARGV[4 * place + 2])
  local function fits(t, n)
    return (not most_tokens or t <= most_tokens) and (not most_dollars or n <= most_dollars)
  end
  local taken, order, t, n = {}, {}, 0, 0
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local at, kind = string.match(fields[i], '^(%d+):(%a)$')
    at = tonumber(at)
    if at + window <= now then
      redis.call('HDEL', key, fields[i])
    else
      if not taken[at] then
        taken[at] = {t = 0, n = 0}
        table.insert(order, at)
      end
      taken[at][kind] = tonumber(fields[i + 1])
      if kind == 't' then t = t + tonumber(fields[i + 1]) else n = n + tonumber(fields[i + 1]) end
    end
  end
  if not fits(tokens, dollars) then return {place, -1} end
  if not fits(t + tokens, n + dollars) then
    table.sort(order)
    for _, at in ipairs(order) do
      t, n = t - taken[at].t, n - taken[at].n
      if fits(t + tokens, n + dollars) then return {place, at + window - now} end
    end
  end
  ends[place] = (math.floor(now / step) + 1) * step
end
for place, key in ipairs(KEYS) do
  local at = string.format('%d', ends[place])
  redis.call('HINCRBY', key, at .. ':t', ARGV[1])
  redis.call('HINCRBY', key, at .. ':n', ARGV[2])
  redis.call('PEXPIRE', key, ends[place] + tonumber(ARGV[4 * place - 1]) - now)
end
return {0, unpack(ends)}

local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local totals = {}
for place, key in ipairs(KEYS) do
  local t, n = 0, 0
  local fields = redis.call('HGETALL', key)
  for i = 1, #fields, 2 do
    local at, kind = string.match(fields[i], '^(%d+):(%a)$')
    if tonumber(at) + tonumber(ARGV[place]) > now then
      if kind == 't' then t = t + tonumber(fields[i + 1]) else n = n + tonumber(fields[i + 1]) end
    end
  end
  table.insert(totals, t)
  table.insert(totals, n)
end
return totals

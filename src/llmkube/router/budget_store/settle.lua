if not redis.call('SET', KEYS[1], '', 'NX', 'PX', 86400000) then return 0 end
for place = 2, #KEYS do
  local key, at = KEYS[place], ARGV[3 * place - 5]
  if redis.call('HEXISTS', key, at .. ':t') == 1 then
    redis.call('HINCRBY', key, at .. ':t', ARGV[3 * place - 4])
    redis.call('HINCRBY', key, at .. ':n', ARGV[3 * place - 3])
  end
end
return 0

local topic, forget, found = take(), take() == '1', 0
for i = 4, #ARGV do
  if forget then forget_body(topic, ARGV[i]) end
  if erase(topic, ARGV[i]) then found = found + 1 end
end
return found

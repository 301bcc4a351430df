local topic, found = take(), 0
for i = 3, #ARGV do
  if erase(topic, ARGV[i]) then found = found + 1 end
end
return found

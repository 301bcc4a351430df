local found = {}
for i = 2, #ARGV do
  found[#found + 1] = describe(ARGV[i])
end
return found

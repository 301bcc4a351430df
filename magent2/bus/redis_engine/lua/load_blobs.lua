for _ = 1, take_number() do
  keep_blob(take(), take(), take())
end
return 1

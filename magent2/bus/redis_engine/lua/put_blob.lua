keep_blob(take(), now_text(), take())
return 1

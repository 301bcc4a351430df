-- needs: base blobs
keep_blob(take(), digits(now_ms()), take())
return 1

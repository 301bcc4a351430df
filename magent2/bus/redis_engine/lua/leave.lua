return end_worker(take())

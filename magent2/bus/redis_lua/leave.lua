-- needs: base topics lanes
return end_worker(take())

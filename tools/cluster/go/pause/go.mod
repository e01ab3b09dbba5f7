module tandem/cluster/pause

go 1.26.0

tool tandem/cluster/pause

package streams

// PartitionOf is the partition of a job among p: FNV-1a (32 bits) of its id modulo p, which is what
// nats-server's partition() computes for one token (server/subject_transform.go, getHashPartition).
func PartitionOf(job string, p int) int {
	const offset, prime = 2166136261, 16777619
	h := uint32(offset)
	for i := range len(job) {
		h = (h ^ uint32(job[i])) * prime
	}
	return int(h % uint32(p))
}

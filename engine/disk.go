package engine

// takeDisk notes the owner's word about its disk.
func (m *Machine) takeDisk(e *Entry) {
	if e.Disk.Epoch != m.epoch || m.epoch == 0 {
		m.garbage("stale_epoch")
		return
	}
	m.diskLow = e.Disk.Low
	m.mix(uint64(e.Kind), e.Seq)
}

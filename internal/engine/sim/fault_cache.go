package sim

// Evict forgets the n least recently used blocks that no request uses, and
// publishes their removal in one batch. It returns how many there were.
func (r *Rank) Evict(n int) int {
	p := r.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	evicted := p.cache.evict(n)
	p.noteEvicted(evicted)
	p.flush()
	return len(evicted)
}

// Clear empties the cache and publishes AllBlocksCleared. Like vLLM's
// reset_prefix_cache it refuses, and returns false, while a block is in use, and
// leaves alone what the host holds, although the event does not say so.
func (r *Rank) Clear() bool {
	p := r.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cache.clear() {
		return false
	}
	p.events = append(p.events, event{kind: allBlocksCleared})
	p.flush()
	return true
}

// Offload moves the n least recently used blocks that no request uses from the
// GPU to the host's memory, from where a later hit copies them back. One batch
// says so: a placeholder on the CPU, then the removals from the GPU. It returns
// how many blocks there were.
func (r *Rank) Offload(n int) int {
	p := r.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	gone, fresh := p.cache.offload(n)
	p.noteOffloaded(fresh)
	p.noteEvicted(gone)
	p.flush()
	return len(gone)
}

// ForgetCPU drops all that the host's memory holds, publishes that and returns
// how many blocks it was.
func (r *Rank) ForgetCPU() int {
	p := r.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	gone := p.cache.forgetCPU()
	for _, hash := range gone {
		p.events = append(p.events, event{kind: blockRemoved, hashes: []blockHash{hash}, cpu: true})
	}
	p.flush()
	return len(gone)
}

// Sleep puts the rank to sleep at level 1 or 2, as POST /sleep does vLLM: its cache
// and the host's copies are gone, requests are refused, and the metrics say so.
// The event does not: it leaves with the first step after Wake. While a block is
// in use it refuses, and returns false.
func (r *Rank) Sleep(level int) bool {
	p := r.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.cache.clear() {
		return false
	}
	p.cache.forgetCPU()
	p.events = append(p.events, event{kind: allBlocksCleared})
	p.counts.sleep = level
	return true
}

// Wake ends Sleep. The cache is empty.
func (r *Rank) Wake() {
	p := r.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts.sleep = 0
}

package sim

// noteEvicted adds one BlockRemoved per block, as vLLM does. p.mu is held.
func (p *process) noteEvicted(hashes []blockHash) {
	for _, hash := range hashes {
		p.events = append(p.events, event{kind: blockRemoved, hashes: []blockHash{hash}})
	}
	p.counts.evictions += uint64(len(hashes))
}

// noteOffloaded adds one placeholder for the blocks that are new to the host, as
// vLLM's OffloadingConnector does by default. p.mu is held.
func (p *process) noteOffloaded(hashes []blockHash) {
	if len(hashes) > 0 {
		p.events = append(p.events, event{kind: blockStored, hashes: hashes, cpu: true})
	}
}

// noteStored names the new full blocks of a lease. p.mu is held.
func (p *process) noteStored(l *lease, tokens []uint32, v variant) {
	fresh := p.cache.store(l)
	if len(fresh) == 0 {
		return
	}
	if p.cfg.NoLoRANames {
		v.adapter = ""
	}
	size := p.cfg.BlockSize
	e := event{
		kind:      blockStored,
		hashes:    fresh,
		tokens:    tokens[l.matched*size : len(l.hashes)*size],
		blockSize: size,
		variant:   v,
	}
	if l.matched > 0 {
		e.parent, e.hasParent = l.hashes[l.matched-1], true
	}
	p.events = append(p.events, e)
}

// flush hands the events of this step to the feed. p.mu is held, so batches
// are in the order of what they describe.
func (p *process) flush() {
	if p.cfg.NoCaching {
		p.events = nil
	}
	if len(p.events) == 0 {
		return
	}
	p.feed.put(p.events)
	p.events = nil
}

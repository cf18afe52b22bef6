package sim

// State is what GET /sim/state says of one rank: counts and addresses, no
// tokens.
type State struct {
	Name            string  `json:"name"`
	Model           string  `json:"model"`
	Rank            int     `json:"rank"`
	BlockSize       int     `json:"block_size"` // tokens
	Blocks          int     `json:"blocks"`     // capacity
	HeldBlocks      int     `json:"held_blocks"`
	HeldCPU         int     `json:"held_cpu"`    // blocks in the host's memory
	UsedBlocks      int     `json:"used_blocks"` // by running requests
	Epoch           string  `json:"epoch,omitempty"`
	NextSequence    uint64  `json:"next_sequence"`
	QueuedBatches   int     `json:"queued_batches"`   // not sent yet
	BufferedBatches int     `json:"buffered_batches"` // for replay
	LostBatches     uint64  `json:"lost_batches"`     // the queue was full, or a fault skipped them
	LostMessages    uint64  `json:"lost_messages"`    // a subscriber's queue was full
	LostReplies     uint64  `json:"lost_replies"`     // a replay client's queue was full
	Subscribers     int     `json:"subscribers"`
	Evictions       uint64  `json:"evictions"` // blocks
	Requests        uint64  `json:"requests"`  // completed
	Running         int     `json:"running"`
	Waiting         int     `json:"waiting"`
	Restarts        uint64  `json:"restarts"`
	Started         float64 `json:"started"` // seconds since the epoch, of this process
}

// State returns the rank's counts. All but LostMessages, LostReplies,
// Subscribers and Restarts start anew in a restart.
func (r *Rank) State() State {
	p := r.current()
	s := State{
		Name: r.cfg.Name, Model: r.cfg.Model, Rank: r.number, BlockSize: r.cfg.BlockSize, Blocks: r.cfg.Blocks,
		Epoch:        p.feed.epoch,
		LostMessages: r.live.dropped.Load(),
		Subscribers:  r.live.subscribers(),
		Restarts:     r.restarts.Load(),
		Started:      float64(p.born.UnixMilli()) / 1e3,
	}
	if r.replay != nil {
		s.LostReplies = r.replay.dropped.Load()
	}
	p.mu.Lock()
	s.HeldBlocks, s.HeldCPU, s.UsedBlocks = len(p.cache.held), len(p.cache.cpu), p.cache.used()
	s.Evictions, s.Requests = p.counts.evictions, p.counts.requests
	s.Running, s.Waiting = p.counts.running, p.counts.waiting
	p.mu.Unlock()
	p.feed.mu.Lock()
	s.NextSequence, s.LostBatches = p.feed.next, p.feed.overflow
	s.QueuedBatches, s.BufferedBatches = len(p.feed.queue), len(p.feed.buffer.batches)
	p.feed.mu.Unlock()
	return s
}

package sim

// replayFaults are those asked of replays and not carried out yet. All but
// refuse concern the next replay that is answered.
type replayFaults struct {
	refuse int  // requests to leave without an answer
	empty  bool // send no batch
	hole   int  // leave out the batch in this place, from 1
	cut    bool // end after keep batches, without a marker
	keep   int
}

// Truncate ends the next replay after n replies and without an end marker,
// which is what vLLM's ROUTER does to a client that reads slowly.
func (r *Rank) Truncate(n int) {
	r.faultReplay(func(f *replayFaults) { f.cut, f.keep = true, n })
}

// Hole leaves the n-th batch out of the next replay, counted from 1.
func (r *Rank) Hole(n int) { r.faultReplay(func(f *replayFaults) { f.hole = n }) }

// Refuse leaves the next n replay requests without any answer.
func (r *Rank) Refuse(n int) { r.faultReplay(func(f *replayFaults) { f.refuse += n }) }

// Empty makes the next replay nothing but the end marker.
func (r *Rank) Empty() { r.faultReplay(func(f *replayFaults) { f.empty = true }) }

// Late makes the replay buffer forget its n oldest batches, so that replays
// start late. It returns how many there were.
func (r *Rank) Late(n int) int {
	f := r.current().feed
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.buffer.forget(n)
}

func (r *Rank) faultReplay(set func(*replayFaults)) {
	f := r.current().feed
	f.mu.Lock()
	defer f.mu.Unlock()
	set(&f.onReplay)
}

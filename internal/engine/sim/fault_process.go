package sim

import "time"

// Restart replaces the process, as a crashed container is: requests fail with
// ErrRestarted, the cache and the replay buffer are empty, the sequence starts
// at 0, the hash seed is new unless it is configured, the epoch always, and
// every connection to the event sockets is closed. The addresses stay.
func (r *Rank) Restart() {
	r.restarting.Lock()
	defer r.restarting.Unlock()
	old := r.current()
	old.kill()
	for _, s := range r.sockets {
		s.disconnect()
	}
	r.process.Store(newProcess(r.cfg, r.number, r.live))
	r.restarts.Add(1)
	close(old.feed.gone)
	r.log.Info("simulated engine restarted", "name", r.cfg.Name, "rank", r.number)
}

// Stall makes the event thread stand still for d: nothing is sent live,
// replayed or answered to snapshot requests, while the engine goes on serving
// and connections stay open.
func (r *Rank) Stall(d time.Duration) { r.current().feed.stall(d) }

// Reseed gives future blocks another random hash seed. What is cached stays
// held under its old hashes but is never found again.
func (r *Rank) Reseed() {
	p := r.current()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.root = newRoot(0)
}

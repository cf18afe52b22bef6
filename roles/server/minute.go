package server

// minute counts what happened within the last minute, to a twelfth of it. The
// zero value has counted nothing. Times are seconds on any clock that is above 0.
type minute struct {
	counts [12]uint32
	last   int64 // twelfth that was counted in last
}

const twelfth = 5 // seconds

// move forgets what is a minute old.
func (m *minute) move(now float64) int64 {
	at := int64(now / twelfth)
	for i := max(m.last+1, at-int64(len(m.counts))+1); i <= at; i++ {
		m.counts[i%int64(len(m.counts))] = 0
	}
	m.last = max(m.last, at)
	return at
}

func (m *minute) add(now float64) { m.counts[m.move(now)%int64(len(m.counts))]++ }

func (m *minute) sum(now float64) (sum int64) {
	m.move(now)
	for _, n := range m.counts {
		sum += int64(n)
	}
	return sum
}

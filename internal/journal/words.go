package journal

// words are the last so many different words of a file, by when they were new.
type words[W comparable] struct {
	limit  uint64
	latest []W // the n-th new word at n % limit
	added  uint64
	at     map[W]uint64 // only a writer's
}

func newWords[W comparable](limit uint64, writing bool) *words[W] {
	w := &words[W]{limit: limit}
	if writing {
		w.at = map[W]uint64{}
	}
	return w
}

// find says how many words ago word was new.
func (w *words[W]) find(word W) (ago uint64, ok bool) {
	n, ok := w.at[word]
	return w.added - 1 - n, ok
}

// get returns the word that was new so many words ago.
func (w *words[W]) get(ago uint64) (word W, ok bool) {
	if ago >= min(w.added, w.limit) {
		return word, false
	}
	return w.latest[(w.added-1-ago)%w.limit], true
}

func (w *words[W]) add(word W) {
	if place := w.added % w.limit; w.added < w.limit {
		w.latest = append(w.latest, word)
	} else {
		if w.at != nil {
			delete(w.at, w.latest[place])
		}
		w.latest[place] = word
	}
	if w.at != nil {
		w.at[word] = w.added
	}
	w.added++
}

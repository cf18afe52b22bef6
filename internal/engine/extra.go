package engine

// Keys are the extra keys of one block: what besides tokens went into its
// hash. They are kept as sent, a view of the payload, because they hold salts
// and multimodal ids that nobody but a debugging tool needs to see. Nil is
// "none".
type Keys []byte

// Beyond reports whether k holds anything besides one string equal to adapter.
// vLLM puts the LoRA name first and may add a cache salt that is equal to it,
// so the name is taken out once only; "" takes out nothing. What cannot be
// read counts as something.
func (k Keys) Beyond(adapter string) bool {
	if k == nil {
		return false
	}
	r := reader{buf: k}
	head, err := r.next()
	if err != nil {
		return true
	}
	elements := uint64(1)
	switch head.kind {
	case kindNil:
		return false
	case kindArray:
		elements = head.n
	default:
		r.pos = 0
	}
	taken := adapter == ""
	for range elements {
		head, err := r.next()
		if err != nil {
			return true
		}
		switch {
		case head.kind == kindNil:
		case head.kind == kindString && !taken && string(r.bytes(head)) == adapter:
			taken = true
		default:
			return true
		}
	}
	return false
}

// FirstApart is the index of the first block of a store that token ids and the
// adapter's name do not identify: a cache salt, an image or another extra key
// went into its hash, and so into that of every block after it. It is
// len(e.Hashes) if there is none. An empty salt is none.
func (e *Event) FirstApart(adapter string) int {
	if e.CacheSalt != "" {
		return 0
	}
	first := len(e.Hashes)
	if e.FirstString >= 0 && e.BlockSize > 0 {
		first = min(first, e.FirstString/e.BlockSize)
	}
	first = min(first, e.firstBeyond(e.ExtraKeys, adapter))
	return min(first, e.firstBeyond(e.MMKeys, ""))
}

// firstBeyond finds the first block with keys of its own. A list that does not
// pair with the hashes concerns all of them.
func (e *Event) firstBeyond(keys []Keys, adapter string) int {
	for i, k := range keys {
		if k.Beyond(adapter) {
			if len(keys) != len(e.Hashes) {
				return 0
			}
			return i
		}
	}
	return len(e.Hashes)
}

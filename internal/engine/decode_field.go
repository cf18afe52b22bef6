package engine

import "math"

// maxGroup is the highest KV-cache group index that is believed.
const maxGroup = 1<<16 - 1

// field reads the value of f. A second value of a field replaces the first.
func (d *decoder) field(e *Event, f Field) error {
	if d.pos < len(d.buf) && d.buf[d.pos] == 0xc0 {
		d.pos++
		e.present |= 1 << f
		e.null |= 1 << f
		return nil
	}
	if f == NameOrMetadata {
		return d.nameOrMetadata(e)
	}
	e.present |= 1 << f
	e.null &^= 1 << f
	switch f {
	case BlockHashes:
		return d.hashes(e)
	case ParentHash:
		head, err := d.next()
		if err != nil {
			return err
		}
		e.Parent, err = d.hash(head, f)
		return err
	case TokenIDs:
		return d.tokens(e)
	case BlockSize:
		return d.integer(&e.BlockSize, f, math.MaxInt32)
	case LoraID:
		return d.loraID(e)
	case Medium:
		return d.text(&e.Medium, f)
	case LoraName:
		return d.text(&e.LoraName, f)
	case ExtraKeys:
		return d.keys(&e.ExtraKeys, f)
	case GroupIdx:
		return d.integer(&e.GroupIdx, f, maxGroup)
	case SpecKind:
		return d.text(&e.SpecKind, f)
	case SlidingWindow:
		return d.integer(&e.SlidingWindow, f, math.MaxInt32)
	case Locality:
		return d.text(&e.Locality, f)
	case Ownership:
		return d.text(&e.Ownership, f)
	case SessionID:
		return d.text(&e.SessionID, f)
	case CacheSalt:
		return d.text(&e.CacheSalt, f)
	case MMKeys:
		return d.keys(&e.MMKeys, f)
	case Origin:
		return d.text(&e.Origin, f)
	case RemainingCopies:
		return d.remaining(e)
	}
	panic("bug: field without a reader")
}

// nameOrMetadata tells vLLM's lora_name from SGLang's map by its type.
func (d *decoder) nameOrMetadata(e *Event) error {
	start := d.pos
	head, err := d.next()
	if err != nil {
		return err
	}
	if head.kind != kindMap {
		d.pos = start
		return d.field(e, LoraName)
	}
	for range head.n {
		key, err := d.key(fieldDepth + 1)
		if err != nil {
			return err
		}
		switch f, _ := fieldByName(key); f {
		case CacheSalt, SessionID, LoraName:
			err = d.field(e, f)
		default:
			err = d.skip(fieldDepth + 1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// list reads the head of an array and holds its length against limit.
func (d *decoder) list(f Field, limit int) (int, error) {
	head, err := d.next()
	if err != nil {
		return 0, err
	}
	if head.kind != kindArray {
		return 0, reject(WrongType, "%v is %v, not an array", f, head.kind)
	}
	if head.n > uint64(max(limit, 0)) {
		return 0, reject(OverLimit, "%v has %d elements, %d are allowed", f, head.n, limit)
	}
	return int(head.n), nil
}

func (d *decoder) hashes(e *Event) error {
	n, err := d.list(BlockHashes, d.hashesLeft)
	if err != nil {
		return err
	}
	d.hashesLeft -= n
	e.Hashes = d.scratch.hashes.take(n)
	for i := range e.Hashes {
		head, err := d.next()
		if err != nil {
			return err
		}
		if e.Hashes[i], err = d.hash(head, BlockHashes); err != nil {
			return err
		}
	}
	return nil
}

// hash reads a block hash: an integer of either sign, or the bytes of a digest
// as bin or, from old encoders, str.
func (d *decoder) hash(head value, f Field) (BlockHash, error) {
	switch head.kind {
	case kindUint:
		return BlockHash{ID: head.n}, nil
	case kindInt:
		return BlockHash{ID: head.n, Negative: true}, nil
	case kindBin, kindString:
		if head.n == 0 {
			return BlockHash{}, reject(OutOfRange, "%v has an empty hash", f)
		}
		if err := d.checkLength(head, f.String()); err != nil {
			return BlockHash{}, err
		}
		b := d.bytes(head)
		return BlockHash{ID: low64(b), Bin: b}, nil
	}
	return BlockHash{}, reject(WrongType, "%v has a hash that is %v", f, head.kind)
}

// low64 is the big-endian integer of the last 8 bytes.
func low64(b []byte) uint64 {
	var n uint64
	for _, c := range b[max(len(b)-8, 0):] {
		n = n<<8 | uint64(c)
	}
	return n
}

// tokens reads token_ids: integers, pairs of integers (bigrams), and strings
// where a multimodal item stands in for tokens.
func (d *decoder) tokens(e *Event) error {
	start := d.pos
	n, err := d.list(TokenIDs, d.limits.Tokens)
	if err != nil {
		return err
	}
	e.Tokens, e.FirstString, e.Bigram, e.rawTokens = d.scratch.tokens.take(n), -1, false, nil
	for i := d.ids(e.Tokens); i < n; i++ { // from the first on that is something else
		head, err := d.next()
		if err != nil {
			return err
		}
		switch {
		case head.kind == kindUint && head.n <= math.MaxUint32:
			if e.Bigram {
				return reject(BrokenBigram, "element %d is not a pair", i)
			}
			e.Tokens[i] = uint32(head.n)
		case head.kind == kindUint, head.kind == kindInt:
			return reject(OutOfRange, "%v element %d is not a 32-bit token id", TokenIDs, i)
		case head.kind == kindArray:
			if err := d.pair(e, i, head); err != nil {
				return err
			}
		case head.kind == kindString:
			if e.Bigram {
				return reject(BrokenBigram, "element %d is not a pair", i)
			}
			if err := d.checkLength(head, TokenIDs.String()); err != nil {
				return err
			}
			d.bytes(head)
			e.Tokens[i] = 0
			if e.FirstString < 0 {
				e.FirstString = i
			}
		default:
			return reject(WrongType, "%v element %d is %v", TokenIDs, i, head.kind)
		}
	}
	if e.FirstString >= 0 {
		e.rawTokens = d.buf[start:d.pos:d.pos]
	}
	return nil
}

// pair reads element i of a bigram list, [t(i), t(i+1)].
func (d *decoder) pair(e *Event, i int, head value) error {
	if head.n != 2 || i > 0 && !e.Bigram {
		return reject(BrokenBigram, "element %d is an array of %d among others", i, head.n)
	}
	var pair [2]uint32
	for k := range pair {
		head, err := d.next()
		if err != nil {
			return err
		}
		if head.kind != kindUint || head.n > math.MaxUint32 {
			return reject(OutOfRange, "%v element %d is not a pair of 32-bit token ids", TokenIDs, i)
		}
		pair[k] = uint32(head.n)
	}
	if i > 0 && pair[0] != e.BigramTail {
		return reject(BrokenBigram, "element %d does not continue the one before", i)
	}
	e.Bigram, e.Tokens[i], e.BigramTail = true, pair[0], pair[1]
	return nil
}

// integer reads a number between 0 and limit.
func (d *decoder) integer(to *int, f Field, limit uint64) error {
	head, err := d.next()
	if err != nil {
		return err
	}
	switch {
	case head.kind == kindUint && head.n <= limit:
		*to = int(head.n)
		return nil
	case head.kind == kindUint, head.kind == kindInt:
		return reject(OutOfRange, "%v is not between 0 and %d", f, limit)
	}
	return reject(WrongType, "%v is %v, not an integer", f, head.kind)
}

// loraID must never read a value it does not understand as "no adapter": that
// would give an adapter's blocks to the base model.
func (d *decoder) loraID(e *Event) error {
	head, err := d.next()
	if err != nil {
		return err
	}
	switch {
	case head.kind == kindInt, head.kind == kindUint && head.n <= math.MaxInt64:
		e.LoraID = int64(head.n)
		return nil
	case head.kind == kindUint:
		return reject(OutOfRange, "%v is over 63 bits", LoraID)
	}
	return reject(WrongType, "%v is %v, not an integer", LoraID, head.kind)
}

func (d *decoder) text(to *string, f Field) error {
	head, err := d.next()
	if err != nil {
		return err
	}
	if head.kind != kindString {
		return reject(WrongType, "%v is %v, not a string", f, head.kind)
	}
	if err := d.checkLength(head, f.String()); err != nil {
		return err
	}
	*to = intern(d.bytes(head))
	return nil
}

func (d *decoder) checkLength(head value, what string) error {
	if head.n > uint64(max(d.limits.String, 0)) {
		return reject(OverLimit, "%s has %d bytes, %d are allowed", what, head.n, d.limits.String)
	}
	return nil
}

// keys reads one entry a block and keeps each as sent.
func (d *decoder) keys(to *[]Keys, f Field) error {
	n, err := d.list(f, d.perHashLeft)
	if err != nil {
		return err
	}
	d.perHashLeft -= n
	keys := make([]Keys, n)
	for i := range keys {
		start := d.pos
		if err := d.skip(fieldDepth + 1); err != nil {
			return err
		}
		if d.buf[start] != 0xc0 {
			keys[i] = Keys(d.buf[start:d.pos:d.pos])
		}
	}
	*to = keys
	return nil
}

func (d *decoder) remaining(e *Event) error {
	n, err := d.list(RemainingCopies, d.perHashLeft)
	if err != nil {
		return err
	}
	d.perHashLeft -= n
	e.Remaining = make([]int, n)
	for i := range e.Remaining {
		if err := d.integer(&e.Remaining[i], RemainingCopies, math.MaxInt32); err != nil {
			return err
		}
	}
	return nil
}

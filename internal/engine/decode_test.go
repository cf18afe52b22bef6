package engine_test

import (
	"bytes"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"inferencecache.io/inferencecache/internal/engine"
	"inferencecache.io/inferencecache/internal/engine/sglang"
	"inferencecache.io/inferencecache/internal/engine/trtllm"
	"inferencecache.io/inferencecache/internal/engine/vllm"
)

func decode(t *testing.T, payload wire) *engine.Batch {
	t.Helper()
	b, err := engine.Decode(vllm.Dialect, payload, engine.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// one decodes a batch of one event.
func one(t *testing.T, event wire) engine.Event {
	t.Helper()
	b := decode(t, envelope(event))
	if len(b.Events) != 1 {
		t.Fatalf("%d events, want 1", len(b.Events))
	}
	return b.Events[0]
}

func TestDecodeFailsOnAnUnreadableEnvelope(t *testing.T) {
	good := stored(nums(1, 1), nums(1, 2))
	removed := array(text("BlockRemoved"), nums(1, 1))
	bomb := bytes.Repeat(wire{0x91}, 100_000)
	for name, c := range map[string]struct {
		payload wire
		want    string
	}{
		"empty":                  {nil, "empty payload"},
		"trailing bytes":         {append(envelope(good), 0xc0), "1 trailing bytes"},
		"two batches in one":     {append(envelope(good), envelope(good)...), "trailing bytes"},
		"reserved byte":          {envelope(wire{0xc1}), "not msgpack"},
		"nesting bomb":           {slices.Clone(bomb), "no event list"},
		"nesting bomb in event":  {envelope(append(slices.Clone(bomb), 0xc0)), "nested too deep"},
		"nesting bomb in field":  {envelope(array(text("BlockRemoved"), nums(1, 1), append(slices.Clone(bomb), 0xc0))), "nested too deep"},
		"nesting bomb at end":    {array(real64(1), array(), null(), append(slices.Clone(bomb), 0xc0)), "nested too deep"},
		"map nesting bomb":       {envelope(append(bytes.Repeat(wire{0x81, 0xc0}, 20), 0xc0)), "nested too deep"},
		"token bomb":             {envelope(stored(nums(1, 1), wire{0xdd, 255, 255, 255, 255})), "unexpected end"},
		"hash bomb":              {envelope(array(text("BlockRemoved"), wire{0xdd, 255, 255, 255, 255})), "unexpected end"},
		"map bomb":               {envelope(wire{0xdf, 255, 255, 255, 255}), "unexpected end"},
		"string bomb":            {envelope(array(wire{0xdb, 255, 255, 255, 255})), "unexpected end"},
		"binary bomb":            {envelope(array(text("BlockRemoved"), array(wire{0xc6, 255, 255, 255, 255}))), "unexpected end"},
		"extension bomb":         {envelope(wire{0xc9, 255, 255, 255, 255}), "unexpected end"},
		"map envelope bomb":      {wire{0xdf, 255, 255, 255, 255}, "unexpected end"},
		"event list is a map":    {array(real64(1), object()), "no event list"},
		"event list is nil":      {array(real64(1), null()), "no event list"},
		"map without events":     {object(text("ts"), real64(1)), "no event list"},
		"map with two lists":     {object(text("events"), array(good), text("events"), array(removed)), "two event lists"},
		"timestamp is text":      {array(text("now"), array()), "timestamp"},
		"rank is text":           {array(real64(1), array(), text("0")), "rank"},
		"rank is negative":       {array(real64(1), array(), num(-1)), "rank"},
		"rank is huge":           {array(real64(1), array(), unum(1<<31)), "rank"},
		"number":                 {num(7), "envelope is not an array or map"},
		"event ends with header": {array(real64(1), wire{0x92, 0x91}), "unexpected end"},
	} {
		_, err := engine.Decode(vllm.Dialect, c.payload, engine.DefaultLimits())
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: error %v, want %q", name, err, c.want)
		}
	}
}

func TestDecodeFailsOnEveryTruncation(t *testing.T) {
	for _, s := range payloadSamples(t) {
		if s.MustFail != nil || len(s.payload) > 1000 {
			continue
		}
		for n := range s.payload {
			if _, err := engine.Decode(s.dialect(), s.payload[:n], engine.DefaultLimits()); err == nil {
				t.Errorf("%s: decoded from its first %d bytes", s.File, n)
			}
		}
	}
}

func TestDecodeAcceptsAMapEnvelope(t *testing.T) {
	event := array(text("AllBlocksCleared"))
	for _, name := range []string{"data_parallel_rank", "attn_dp_rank", "dp_rank"} {
		for _, d := range []engine.Dialect{vllm.Dialect, sglang.Dialect, trtllm.Dialect} {
			b, err := engine.Decode(d, object(
				text(name), num(3), text("later"), array(object()), num(5), num(6),
				text("events"), array(event), text("ts"), num(9),
			), engine.DefaultLimits())
			if err != nil {
				t.Fatal(err)
			}
			if b.TS != 9 || !b.HasRank || b.Rank != 3 || len(b.Events) != 1 || b.Events[0].Kind != engine.Cleared {
				t.Errorf("%s in %s: got %+v", name, d.Name, b)
			}
		}
	}
	if b := decode(t, object(text("events"), array())); b.HasRank || b.TS != 0 {
		t.Errorf("bare map envelope: got %+v", b)
	}
}

func TestDecodeGivesEachEventItsVerdict(t *testing.T) {
	hashes, tokens := nums(1, 1), nums(1, 2)
	with := func(fields ...wire) wire { return stored(hashes, tokens, fields...) }
	long := text(strings.Repeat("x", 64<<10+1))
	for name, c := range map[string]struct {
		event  wire
		status engine.Status
		reason engine.Reason
	}{
		"shortest store":          {with(), engine.OK, ""},
		"fields of the future":    {with(null(), null(), null(), null(), null(), null(), null(), null(), num(1), array(object())), engine.OK, ""},
		"number":                  {num(1), engine.Rejected, engine.NotAnEvent},
		"nil":                     {null(), engine.Rejected, engine.NotAnEvent},
		"empty array":             {array(), engine.Rejected, engine.NotAnEvent},
		"empty map":               {object(), engine.Rejected, engine.NotAnEvent},
		"map without type":        {object(text("block_hashes"), hashes), engine.Rejected, engine.NotAnEvent},
		"tag is a number":         {array(num(1), hashes), engine.Rejected, engine.NotAnEvent},
		"type is nil":             {object(text("type"), null()), engine.Rejected, engine.NotAnEvent},
		"unknown array tag":       {array(text("TierBlocksCleared"), text("CPU")), engine.Skipped, engine.UnknownTag},
		"unknown map tag":         {object(text("block_hashes"), num(1), text("type"), text("BlockInactive")), engine.Skipped, engine.UnknownTag},
		"Dynamo's Ignored":        {array(text("Ignored")), engine.Skipped, engine.IgnoredTag},
		"over-long tag":           {array(long), engine.Rejected, engine.OverLimit},
		"cleared with fields":     {array(text("AllBlocksCleared"), num(1)), engine.OK, ""},
		"cleared as map":          {object(text("type"), text("AllBlocksCleared"), text("medium"), num(1)), engine.OK, ""},
		"removed without hashes":  {array(text("BlockRemoved")), engine.Rejected, engine.MissingField},
		"removed with nil hashes": {array(text("BlockRemoved"), null()), engine.Rejected, engine.MissingField},
		"map without tokens":      {object(text("type"), text("BlockStored"), text("block_hashes"), hashes, text("block_size"), num(2)), engine.Rejected, engine.MissingField},
		"nil tokens":              {stored(hashes, null()), engine.OK, ""},
		"hashes are a number":     {stored(num(1), tokens), engine.Rejected, engine.WrongType},
		"hash is a float":         {stored(array(real64(1)), tokens), engine.Rejected, engine.WrongType},
		"hash is nil":             {stored(array(null()), tokens), engine.Rejected, engine.WrongType},
		"hash is empty":           {stored(array(bin()), tokens), engine.Rejected, engine.OutOfRange},
		"parent is a list":        {array(text("BlockStored"), hashes, array(), tokens, num(2)), engine.Rejected, engine.WrongType},
		"token is a float":        {stored(hashes, array(real64(1), real64(2))), engine.Rejected, engine.WrongType},
		"token is nil":            {stored(hashes, array(null(), num(2))), engine.Rejected, engine.WrongType},
		"token is negative":       {stored(hashes, array(num(-1), num(2))), engine.Rejected, engine.OutOfRange},
		"token has 33 bits":       {stored(hashes, array(unum(1<<32), num(2))), engine.Rejected, engine.OutOfRange},
		"token has 32 bits":       {stored(hashes, array(unum(1<<32-1), num(2))), engine.OK, ""},
		"size is negative":        {array(text("BlockStored"), hashes, null(), tokens, num(-2)), engine.Rejected, engine.OutOfRange},
		"size is huge":            {array(text("BlockStored"), hashes, null(), tokens, unum(1<<31)), engine.Rejected, engine.OutOfRange},
		"size is nil":             {array(text("BlockStored"), hashes, null(), tokens, null()), engine.Rejected, engine.MissingField},
		"lora_id is a bool":       {with(wire{0xc2}), engine.Rejected, engine.WrongType},
		"lora_id is a string":     {with(text("3")), engine.Rejected, engine.WrongType},
		"lora_id is a float":      {with(real64(3)), engine.Rejected, engine.WrongType},
		"lora_id has 64 bits":     {with(unum(1 << 63)), engine.Rejected, engine.OutOfRange},
		"medium is a number":      {with(null(), num(1)), engine.Rejected, engine.WrongType},
		"lora_name is a number":   {with(null(), null(), num(1)), engine.Rejected, engine.WrongType},
		"salt is a number":        {with(null(), null(), object(text("cache_salt"), num(1))), engine.Rejected, engine.WrongType},
		"over-long name":          {with(null(), null(), long), engine.Rejected, engine.OverLimit},
		"extra_keys is a number":  {with(null(), null(), null(), num(1)), engine.Rejected, engine.WrongType},
		"group is negative":       {with(null(), null(), null(), null(), num(-1)), engine.Rejected, engine.OutOfRange},
		"group is huge":           {with(null(), null(), null(), null(), unum(1<<16)), engine.Rejected, engine.OutOfRange},
		"kind is a number":        {with(null(), null(), null(), null(), null(), num(1)), engine.Rejected, engine.WrongType},
		"mm_keys is a number":     {storedMap(hashes, tokens, text("mm_keys"), num(1)), engine.Rejected, engine.WrongType},
		"block twice":             {stored(array(num(1), num(2), num(1)), nums(1, 6)), engine.Rejected, engine.DuplicateHash},
		"block twice, two forms":  {stored(array(num(1), bin(9, 0, 0, 0, 0, 0, 0, 0, 1)), nums(1, 4)), engine.Rejected, engine.DuplicateHash},
		"block twice among many":  {stored(array(append(slices.Repeat([]wire{num(7)}, 1), manyNums(100, 40, 7)...)...), nums(1, 84)), engine.Rejected, engine.DuplicateHash},
		"removed twice":           {array(text("BlockRemoved"), array(num(1), num(1))), engine.OK, ""},
		"own parent":              {array(text("BlockStored"), hashes, num(1), tokens, num(2)), engine.Rejected, engine.SelfReference},
		"parent 0":                {array(text("BlockStored"), hashes, num(0), tokens, num(2)), engine.OK, ""},
		"pair among tokens":       {stored(hashes, array(num(1), array(num(1), num(2)))), engine.Rejected, engine.BrokenBigram},
		"token among pairs":       {stored(hashes, array(array(num(1), num(2)), num(2))), engine.Rejected, engine.BrokenBigram},
		"string among pairs":      {stored(hashes, array(array(num(1), num(2)), text("x"))), engine.Rejected, engine.BrokenBigram},
		"pairs that do not meet":  {stored(hashes, array(array(num(1), num(2)), array(num(3), num(4)))), engine.Rejected, engine.BrokenBigram},
		"triples":                 {stored(hashes, array(nums(1, 3), nums(2, 3))), engine.Rejected, engine.BrokenBigram},
		"pair of strings":         {stored(hashes, array(array(text("a"), text("b")))), engine.Rejected, engine.OutOfRange},
		"counts do not pair": {object(text("type"), text("BlockRemoved"), text("block_hashes"), hashes,
			text("remaining_copy_counts"), nums(0, 2)), engine.Rejected, engine.LengthMismatch},
	} {
		// A removal follows: no verdict may cost it.
		b := decode(t, envelope(c.event, array(text("BlockRemoved"), hashes)))
		if len(b.Events) != 2 || b.Events[1].Kind != engine.Removed || b.Events[1].Verdict.Status != engine.OK {
			t.Errorf("%s: the event after it was lost: %+v", name, b.Events)
			continue
		}
		if got := b.Events[0].Verdict; got.Status != c.status || got.Reason != c.reason {
			t.Errorf("%s: verdict %v %q (%s), want %v %q", name, got.Status, got.Reason, got.Detail, c.status, c.reason)
		}
	}
}

// manyNums are n numbers from first on, then last.
func manyNums(first, n int, last int64) []wire {
	list := make([]wire, 0, n+1)
	for i := range n {
		list = append(list, num(int64(first+i)))
	}
	return append(list, num(last))
}

func TestDecodeKeepsToItsLimits(t *testing.T) {
	limits := engine.Limits{Payload: 200, Events: 3, Hashes: 4, Tokens: 6, String: 12}
	f := func(payload wire, want ...engine.Reason) {
		t.Helper()
		b, err := engine.Decode(vllm.Dialect, payload, limits)
		if err != nil {
			t.Fatal(err)
		}
		var got []engine.Reason
		for _, e := range b.Events {
			got = append(got, e.Verdict.Reason)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("reasons (-want +got):\n%s", diff)
		}
	}
	f(envelope(stored(nums(1, 4), nums(1, 6))), "")
	f(envelope(stored(nums(1, 5), nums(1, 6)), stored(nums(1, 4), nums(1, 6))), engine.OverLimit, "")
	f(envelope(stored(nums(1, 3), nums(1, 7)), stored(nums(1, 1), nums(1, 6))), engine.OverLimit, "")
	f(envelope(stored(nums(1, 4), nums(1, 6)), stored(nums(1, 1), nums(1, 2))), "", engine.OverLimit) // 4 a batch
	f(envelope(stored(nums(1, 1), nums(1, 2), null(), text("GPU_AND_MORE"))), "")
	f(envelope(stored(nums(1, 1), nums(1, 2), null(), text("GPU_AND_MORE!"))), engine.OverLimit)
	for _, payload := range []wire{
		envelope(null(), null(), null(), null()),
		append(envelope(), make(wire, 200)...),
	} {
		if _, err := engine.Decode(vllm.Dialect, payload, limits); err == nil || !strings.Contains(err.Error(), "limit") {
			t.Errorf("error %v, want one about a limit", err)
		}
	}
}

func TestDecodeReadsHashesOfEveryForm(t *testing.T) {
	digest := []byte{0xff, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}
	e := one(t, array(text("BlockRemoved"), array(
		bin(digest...), unum(0x08090a0b0c0d0e0f), num(-1), bin(1, 2), append(wire{0xa8}, digest[8:]...),
	)))
	want := []engine.BlockHash{
		{ID: 0x08090a0b0c0d0e0f, Bin: digest},
		{ID: 0x08090a0b0c0d0e0f},
		{ID: math.MaxUint64, Negative: true},
		{ID: 0x0102, Bin: []byte{1, 2}},
		{ID: 0x08090a0b0c0d0e0f, Bin: digest[8:]},
	}
	if diff := cmp.Diff(want, e.Hashes); diff != "" {
		t.Errorf("hashes (-want +got):\n%s", diff)
	}
}

func TestDecodeReadsEveryIntegerWidth(t *testing.T) {
	e := one(t, stored(nums(1, 4), array(
		wire{0x05}, wire{0xcc, 5}, wire{0xcd, 0, 5}, wire{0xce, 0, 0, 0, 5}, wire{0xcf, 0, 0, 0, 0, 0, 0, 0, 5},
		wire{0xd0, 5}, wire{0xd1, 0, 5}, wire{0xd2, 0, 0, 0, 5},
	), wire{0xd3, 255, 255, 255, 255, 255, 255, 255, 254}))
	if diff := cmp.Diff([]uint32{5, 5, 5, 5, 5, 5, 5, 5}, e.Tokens); diff != "" {
		t.Errorf("tokens (-want +got):\n%s", diff)
	}
	if e.LoraID != -2 || !e.Has(engine.LoraID) {
		t.Errorf("lora_id %d, want -2", e.LoraID)
	}
}

func TestDecodeSkipsEveryKindOfValue(t *testing.T) {
	later := array(
		null(), wire{0xc2}, wire{0xc3}, wire{0xca, 0, 0, 0, 0}, real64(1), num(-1), num(-100), unum(1<<40),
		text("x"), text(strings.Repeat("x", 40)), bin(1, 2), wire{0xc5, 0, 1, 9}, wire{0xc6, 0, 0, 0, 1, 9},
		wire{0xda, 0, 1, 'x'}, wire{0xdb, 0, 0, 0, 1, 'x'}, wire{0xd4, 1, 2}, wire{0xd5, 1, 2, 3},
		append(wire{0xd6, 1}, make(wire, 4)...), append(wire{0xd7, 1}, make(wire, 8)...), append(wire{0xd8, 1}, make(wire, 16)...),
		wire{0xc7, 1, 5, 6}, wire{0xc8, 0, 1, 5, 6}, wire{0xc9, 0, 0, 0, 1, 5, 6},
		wire{0xdc, 0, 1, 1}, wire{0xdd, 0, 0, 0, 1, 1}, wire{0xde, 0, 1, 1, 2}, wire{0xdf, 0, 0, 0, 1, 1, 2},
	)
	b := decode(t, envelope(array(text("New"), later), array(text("AllBlocksCleared"))))
	if len(b.Events) != 2 || b.Events[1].Kind != engine.Cleared {
		t.Errorf("got %+v", b.Events)
	}
}

func TestDecodeReadsWhatFollowsTheMedium(t *testing.T) {
	hashes, tokens := nums(1, 1), nums(1, 2)
	e := one(t, stored(hashes, tokens, num(3), text("CPU"), text("sql"), array(array(text("sql"))), num(1),
		text("mla_attention"), num(128), text("REMOTE")))
	got := []any{e.LoraID, e.Medium, e.LoraName, e.GroupIdx, e.SpecKind, e.SlidingWindow, e.Locality}
	if diff := cmp.Diff([]any{int64(3), "CPU", "sql", 1, "mla_attention", 128, "REMOTE"}, got); diff != "" {
		t.Errorf("fields (-want +got):\n%s", diff)
	}
	e = one(t, stored(hashes, tokens, null(), null(), object(
		text("session_id"), text("s"), text("cache_salt"), text("salt"), text("later"), array(), num(1), num(2))))
	if e.CacheSalt != "salt" || e.SessionID != "s" || e.Has(engine.LoraName) {
		t.Errorf("metadata map: got %+v", e)
	}
	e = one(t, array(text("BlockRemoved"), hashes, text("CPU"), num(2), text("LOCAL"), text("later")))
	if e.Medium != "CPU" || e.GroupIdx != 2 || e.Locality != "LOCAL" {
		t.Errorf("removal: got %+v", e)
	}
	e = one(t, storedMap(hashes, tokens, text("origin"), text("REUSED"), text("event_version"), num(2)))
	if e.Origin != "REUSED" {
		t.Errorf("origin %q, want REUSED", e.Origin)
	}
}

func TestFirstApartFindsWhatTokensDoNotName(t *testing.T) {
	f := func(name string, event wire, adapter string, want int) {
		t.Helper()
		e := one(t, event)
		if e.Verdict.Status != engine.OK {
			t.Fatalf("%s: verdict %+v", name, e.Verdict)
		}
		if got := e.FirstApart(adapter); got != want {
			t.Errorf("%s: first apart is %d, want %d", name, got, want)
		}
	}
	hashes, tokens := nums(1, 3), nums(1, 6)
	keys := func(entries ...wire) wire {
		return storedMap(hashes, tokens, text("extra_keys"), array(entries...))
	}
	f("plain", storedMap(hashes, tokens), "", 3)
	f("nil keys", keys(null(), null(), null()), "", 3)
	f("empty keys", keys(array(), array(), array()), "", 3)
	f("adapter name", keys(array(text("a")), array(text("a")), array(text("a"))), "a", 3)
	f("adapter name nobody mentioned", keys(array(text("a")), array(text("a")), array(text("a"))), "", 0)
	f("salt", keys(array(text("salt")), null(), null()), "", 0)
	f("salt after the name", keys(array(text("a"), text("salt")), array(text("a")), array(text("a"))), "a", 0)
	f("salt equal to the name", keys(array(text("a"), text("a")), array(text("a")), array(text("a"))), "a", 0)
	f("bare string", keys(text("a"), text("a"), text("a")), "a", 3)
	f("image in the second block", keys(null(), array(array(text("mm"), num(3))), null()), "", 1)
	f("typed key", keys(null(), null(), array(object(text("type"), text("salt"), text("later"), num(1)))), "", 2)
	f("bytes", keys(null(), null(), array(bin(1))), "", 2)
	f("keys that do not pair", keys(null(), array(num(1))), "", 0)
	f("cache salt", storedMap(hashes, tokens, text("cache_salt"), text("s")), "", 0)
	f("empty cache salt", storedMap(hashes, tokens, text("cache_salt"), text("")), "", 3)
	f("string token", storedMap(hashes, array(num(1), num(2), num(3), text("mm"), num(5), num(6))), "", 1)
	f("mm_keys", storedMap(hashes, tokens, text("mm_keys"), array(array(), array(object(text("type"), text("mm_key"))), array())), "", 1)
	f("no mm_keys", storedMap(hashes, tokens, text("mm_keys"), array(array(), array(), null())), "", 3)
}

func TestTimeRefusesWhatMeansArrival(t *testing.T) {
	f := func(ts float64, want bool) {
		t.Helper()
		if _, ok := (&engine.Batch{TS: ts}).Time(); ok != want {
			t.Errorf("time of %v: %t, want %t", ts, ok, want)
		}
	}
	f(1779901681.5, true)
	f(0, false)
	f(-1, false)
	f(math.NaN(), false)
	f(math.Inf(1), false)
	f(1e30, false)
	at, _ := (&engine.Batch{TS: 1779901681.5}).Time()
	if at.UnixMilli() != 1779901681500 {
		t.Errorf("time is %v", at)
	}
}

func TestDocumentShowsFieldsAsSent(t *testing.T) {
	f := func(event wire, want string) {
		t.Helper()
		got, err := json.Marshal(decode(t, envelope(event)).Document())
		if err != nil {
			t.Fatal(err)
		}
		want = `{"ts":1,"dp_rank":0,"events":[` + want + `]}`
		if diff := cmp.Diff(want, string(got)); diff != "" {
			t.Errorf("document (-want +got):\n%s", diff)
		}
	}
	f(stored(array(num(-1)), nums(1, 2), null(), text("GPU"), null(), array(array(text("é"), bin(1), wire{0xd4, 1, 2}, object(num(1), null())))),
		`{"index":0,"type":"BlockStored","block_hashes":[{"wire":"int","value":"-1","key_hex":"ffffffffffffffff"}],`+
			`"parent_block_hash":null,"token_ids":[1,2],"block_size":2,"lora_id":null,"medium":"GPU","lora_name":null,`+
			`"extra_keys":[["é",{"hex":"01"},{"hex":"d40102"},{"1":null}]],"verdict":{"status":"ok"}}`)
	f(object(text("block_hashes"), array(bin(0, 1, 2, 3, 4, 5, 6, 7, 8)), text("type"), text("BlockRemoved")),
		`{"index":0,"type":"BlockRemoved","block_hashes":[{"wire":"bin","key_hex":"000102030405060708","low64_hex":"0102030405060708"}],`+
			`"verdict":{"status":"ok"}}`)
	f(storedMap(nums(1, 1), array(num(7), text("mm:1")), text("mm_keys"), array(array(object(text("type"), text("mm_key"), text("hash"), num(9))))),
		`{"index":0,"type":"BlockStored","block_hashes":[{"wire":"int","value":"1","key_hex":"0000000000000001"}],`+
			`"token_ids":[7,"mm:1"],"block_size":2,"mm_keys":[[{"type":"mm_key","hash":9}]],"verdict":{"status":"ok"}}`)
	f(array(text("Later"), num(1)), `{"index":0,"type":"Later","verdict":{"status":"skipped","reason":"unknown_tag"}}`)
	f(num(1), `{"index":0,"type":null,"verdict":{"status":"rejected","reason":"not_an_event","detail":"it is integer"}}`)
}

// TensorRT-LLM sends maps: a prompt with an image, whose tokens are strings
// and whose blocks carry mm_keys, the rank in the envelope, and signed hashes.
func TestTensorRTLLMEvents(t *testing.T) {
	imageKey := object(text("type"), text("mm_key"), text("hash"), text("0a1b"), text("start_offset"), num(0))
	payload := array(real64(1779901681.5), array(
		object(text("type"), text("BlockStored"), text("block_hashes"), array(num(-5), num(7)), text("parent_block_hash"), null(),
			text("token_ids"), array(num(1), num(2), text("mm:1"), text("mm:2")), text("block_size"), num(2), text("lora_id"), null(),
			text("medium"), text("GPU"), text("lora_name"), null(), text("mm_keys"), array(array(), array(imageKey))),
		object(text("type"), text("BlockRemoved"), text("block_hashes"), array(num(-5)), text("medium"), text("GPU")),
		object(text("type"), text("AllBlocksCleared")),
		stored(array(num(9)), nums(1, 2), null(), text("GPU")),
	), num(3))
	batch, err := engine.Decode(trtllm.Dialect, payload, engine.DefaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	if !batch.HasRank || batch.Rank != 3 || len(batch.Events) != 4 {
		t.Fatalf("rank %d (%t), %d events", batch.Rank, batch.HasRank, len(batch.Events))
	}
	for i, want := range []string{"BlockStored", "BlockRemoved", "AllBlocksCleared", "BlockStored"} {
		e := &batch.Events[i]
		if got := plain(t, e)["type"]; got != want || e.Verdict.Status != engine.OK {
			t.Errorf("event %d is %v with verdict %v, want %s", i, got, e.Verdict, want)
		}
	}
	first := plain(t, &batch.Events[0])
	want := []any{1., 2., "mm:1", "mm:2"}
	if diff := cmp.Diff(want, first["token_ids"]); diff != "" || first["mm_keys"] == nil {
		t.Errorf("mm_keys %v, tokens (-want +got):\n%s", first["mm_keys"], diff)
	}
}

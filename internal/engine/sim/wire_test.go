package sim

import (
	"encoding/hex"
	"strings"
	"testing"
	"time"
)

// The bytes are written by hand from the msgpack specification.
func TestBatchBytes(t *testing.T) {
	stored := event{
		kind: blockStored, hashes: []blockHash{0x0123456789abcdef}, parent: 5, hasParent: true,
		tokens: []uint32{1, 128, 300, 70000}, blockSize: 4,
	}
	f := func(encoding string, e event, want ...string) {
		t.Helper()
		got := hex.EncodeToString(appendBatch(nil, encoding, time.Unix(1, 500_000_000), 0, []event{e}))
		envelope := "93" + "cb3ff8000000000000" + "91" + strings.ReplaceAll(strings.Join(want, ""), " ", "") + "00"
		if got != envelope {
			t.Errorf("%s\n got %s\nwant %s", encoding, got, envelope)
		}
	}
	name := func(s string) string { return hex.EncodeToString(append([]byte{0xa0 | byte(len(s))}, s...)) }
	f(EncodingArray, stored, "9c", name("BlockStored"), "91 cf0123456789abcdef", "05", "94 01 cc80 cd012c ce00011170",
		"04 c0", name("GPU"), "c0", "91 c0", "00", name("full_attention"), "c0")
	f(EncodingMap, stored, "8b", name("type"), name("BlockStored"),
		name("block_hashes"), "91 cf0123456789abcdef", name("parent_block_hash"), "05",
		name("token_ids"), "94 01 cc80 cd012c ce00011170", name("block_size"), "04", name("lora_id"), "c0",
		name("medium"), name("GPU"), name("lora_name"), "c0", name("extra_keys"), "91 c0",
		name("group_idx"), "00", name("kv_cache_spec_kind"), name("full_attention"))
	f(EncodingArray, event{kind: blockRemoved, hashes: []blockHash{9}}, "94", name("BlockRemoved"), "91 09", name("GPU"), "00")
	f(EncodingMap, event{kind: blockRemoved, hashes: []blockHash{9}}, "84", name("type"), name("BlockRemoved"),
		name("block_hashes"), "91 09", name("medium"), name("GPU"), name("group_idx"), "00")
	placed := event{kind: blockStored, hashes: []blockHash{9}, cpu: true}
	f(EncodingArray, placed, "9c", name("BlockStored"), "91 09 c0 90 00 c0", name("CPU"), "c0 c0 00 c0 c0")
	f(EncodingMap, placed, "89", name("type"), name("BlockStored"), name("block_hashes"), "91 09", name("parent_block_hash"), "c0",
		name("token_ids"), "90", name("block_size"), "00", name("lora_id"), "c0", name("medium"), name("CPU"), name("lora_name"), "c0",
		name("group_idx"), "00")
	f(EncodingArray, event{kind: blockRemoved, hashes: []blockHash{9}, cpu: true}, "94", name("BlockRemoved"), "91 09", name("CPU"), "00")
	f(EncodingArray, event{kind: allBlocksCleared}, "91", name("AllBlocksCleared"))
	f(EncodingMap, event{kind: allBlocksCleared}, "81", name("type"), name("AllBlocksCleared"))
}

func TestHeadersGrowWithTheirLength(t *testing.T) {
	f := func(got []byte, want string) {
		t.Helper()
		if hex.EncodeToString(got) != want {
			t.Errorf("got %x, want %s", got, want)
		}
	}
	f(appendArray(nil, 15), "9f")
	f(appendArray(nil, 16), "dc0010")
	f(appendArray(nil, 65535), "dcffff")
	f(appendArray(nil, 65536), "dd00010000")
	f(appendMap(nil, 16), "de0010")
	f(appendUint(nil, 127), "7f")
	f(appendUint(nil, 255), "ccff")
	f(appendUint(nil, 65535), "cdffff")
	f(appendUint(nil, 1<<32-1), "ceffffffff")
	f(appendUint(nil, 1<<32), "cf0000000100000000")
	f(appendString(nil, strings.Repeat("x", 32))[:2], "d920")
	f(appendString(nil, strings.Repeat("x", 256))[:3], "da0100")
	f(appendString(nil, strings.Repeat("x", 65536))[:5], "db00010000")
	f(appendInt(nil, 7), "07")
	f(appendInt(nil, -1<<63), "d38000000000000000")
}

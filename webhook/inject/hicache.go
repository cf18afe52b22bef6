package inject

import (
	"strconv"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	hiCacheFlag  = "--enable-hierarchical-cache"
	hiSizeFlag   = "--hicache-size"
	hiRatioFlag  = "--hicache-ratio"
	hiWriteFlag  = "--hicache-write-policy"
	hiIOFlag     = "--hicache-io-backend"
	hiLayoutFlag = "--hicache-mem-layout"
)

// sglangHiCache turns on SGLang's own host tier. It needs no server.
var sglangHiCache = adapter{
	container:    "sglang",
	scheme:       "sglang",
	httpPort:     30000,
	reservedArgs: []string{hiCacheFlag, hiSizeFlag, hiRatioFlag, hiWriteFlag, hiIOFlag, hiLayoutFlag, metricsFlag},
	wire:         wireHiCache,
}

func wireHiCache(w *wiring) error {
	for _, flag := range []string{enableLMCacheFlag, clientFileFlag} {
		if w.line.has(flag) {
			return refuse(v1alpha1.SkipForeignConnector, "the engine has %s, which excludes HiCache: remove it, or use type LMCache", flag)
		}
	}
	h := w.backend.Spec.HiCache
	if h == nil || (h.SizeGB == nil) == (h.Ratio == "") {
		return refuse(v1alpha1.SkipInvalidBackend, "hiCache needs exactly one of sizeGB and ratio")
	}
	if all := w.line.find(hiCacheFlag); len(all) > 1 || len(all) == 1 && w.line.tokens[all[0].at].text != hiCacheFlag {
		return refuse(v1alpha1.SkipIncompatibleArgs, "%s takes no value and is given once", hiCacheFlag)
	} else if len(all) == 0 {
		w.line.add(hiCacheFlag)
	}
	capacity, value, other := hiRatioFlag, h.Ratio, hiSizeFlag
	if h.SizeGB != nil {
		capacity, value, other = hiSizeFlag, strconv.Itoa(int(*h.SizeGB)), hiRatioFlag
	}
	if w.line.has(other) {
		return refuse(v1alpha1.SkipIncompatibleArgs, "the engine has %s, but hiCache says %s: remove one", other, capacity)
	}
	if err := w.agree(capacity, value, equalNumbers); err != nil {
		return err
	}
	for _, f := range []struct{ flag, value string }{
		{hiWriteFlag, string(h.WritePolicy)}, {hiIOFlag, string(h.IOBackend)}, {hiLayoutFlag, string(h.MemoryLayout)},
	} {
		if f.value == "" {
			continue
		}
		if err := w.agree(f.flag, f.value, func(a, b string) bool { return a == b }); err != nil {
			return err
		}
	}
	w.enableMetrics()
	return nil
}

// agree adds a flag, or keeps an equal one as it is written.
func (w *wiring) agree(flag, value string, equal func(a, b string) bool) error {
	found := w.line.find(flag)
	switch {
	case len(found) == 0:
		w.line.add(flag, value)
		return nil
	case len(found) > 1:
		return refuse(v1alpha1.SkipIncompatibleArgs, "the engine has %s %d times: give it once at most", flag, len(found))
	case !found[0].given || !equal(found[0].value, value):
		return refuse(v1alpha1.SkipIncompatibleArgs, "the engine has %s %s, but hiCache says %s: remove the flag", flag, found[0].value, value)
	}
	return nil
}

func equalNumbers(a, b string) bool {
	x, errX := strconv.ParseFloat(a, 64)
	y, errY := strconv.ParseFloat(b, 64)
	return errX == nil && errY == nil && x == y
}

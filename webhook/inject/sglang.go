package inject

import (
	"slices"
	"strconv"

	"inferencecache.io/inferencecache/api/v1alpha1"
)

const (
	enableLMCacheFlag = "--enable-lmcache"
	clientFileFlag    = "--lmcache-config-file"
	metricsFlag       = "--enable-metrics"
	pageSizeFlag      = "--page-size"
	experimental      = "LMCACHE_USE_EXPERIMENTAL"
)

// sglangLMCache connects SGLang to an LMCache server by a client file.
var sglangLMCache = adapter{
	container:    "sglang",
	scheme:       "sglang",
	httpPort:     30000,
	reservedArgs: []string{enableLMCacheFlag, clientFileFlag, metricsFlag},
	reservedEnv:  []string{experimental, envNodeIP, envFailOpen},
	wire:         wireSGLang,
}

func wireSGLang(w *wiring) error {
	if err := w.checkSGLang(); err != nil {
		return err
	}
	if _, _, err := w.placeServer(); err != nil {
		return err
	}
	if !w.line.has(pageSizeFlag) {
		w.line.add(pageSizeFlag, strconv.Itoa(int(w.backend.Spec.LMCache.PageSize())))
	}
	if !w.line.has(enableLMCacheFlag) {
		w.line.add(enableLMCacheFlag)
	}
	if err := w.setFlag(clientFileFlag, w.clientFile()); err != nil {
		return err
	}
	if w.subscribes() {
		w.enableMetrics()
	}
	w.setEnv(experimental, "True")
	return nil
}

// clientFile is where the engine reads which server to use.
func (w *wiring) clientFile() string {
	if w.backend.Spec.LMCache.Topology == v1alpha1.NodeLocal {
		return nodeClientFile
	}
	return podClientFile
}

// setFlag adds a flag with a value, or sees that it has this one already.
func (w *wiring) setFlag(name, value string) error {
	found := w.line.find(name)
	switch {
	case len(found) == 0:
		w.line.add(name, value)
		return nil
	case len(found) == 1 && found[0].value == value:
		return nil
	case len(found) == 1 && w.wasOurs:
		return w.line.replace(found[0], name, value)
	}
	return refuse(v1alpha1.SkipIncompatibleArgs, "the engine has %s %s of its own: remove it", name, found[0].value)
}

func (w *wiring) enableMetrics() {
	if !w.line.has(metricsFlag) {
		w.line.add(metricsFlag)
	}
}

// checkSGLang refuses what LMCache cannot serve.
func (w *wiring) checkSGLang() error {
	l, chunk := w.line, w.backend.Spec.LMCache.ChunkSize()
	if l.has(hiCacheFlag) {
		return refuse(v1alpha1.SkipForeignConnector, "the engine has %s, which excludes LMCache: remove it, or use type SGLangHiCache", hiCacheFlag)
	}
	pages := l.find(pageSizeFlag)
	switch {
	case len(pages) > 1:
		return refuse(v1alpha1.SkipIncompatibleArgs, "the engine has %s %d times: give it once at most", pageSizeFlag, len(pages))
	case len(pages) == 1 && pages[0].known:
		size, err := strconv.ParseInt(pages[0].value, 10, 32)
		if err != nil || size < 1 || int64(chunk)%size != 0 {
			return refuse(v1alpha1.SkipIncompatibleArgs, "%s %s does not divide lmCache.chunkSizeTokens, which is %d", pageSizeFlag, pages[0].value, chunk)
		}
	case len(pages) == 1:
		w.warn("%s is not known here: it must divide lmCache.chunkSizeTokens, which is %d", pageSizeFlag, chunk)
	case chunk%w.backend.Spec.LMCache.PageSize() != 0:
		return refuse(v1alpha1.SkipInvalidBackend, "lmCache.pageSizeTokens %d does not divide lmCache.chunkSizeTokens, which is %d: set one of them",
			w.backend.Spec.LMCache.PageSize(), chunk)
	}
	if value, _, ok := l.last("--tp-size", "--tp", "--tensor-parallel-size"); ok && !slices.Contains([]string{"", "1"}, value) {
		w.warn("LMCache is not known to work with SGLang's tensor parallelism (--tp-size %s)", value)
	}
	return nil
}

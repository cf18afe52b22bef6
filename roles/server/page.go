package server

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"io/fs"
	"net/http"
	"path"
	"time"
)

// pageFiles are the status page: files that a browser reads as they are.
//
//go:embed page
var pageFiles embed.FS

// pageTypes are the content types by ending. The system's own table is not
// asked, as images without one differ.
var pageTypes = map[string]string{
	".html": "text/html; charset=utf-8",
	".css":  "text/css; charset=utf-8",
	".js":   "text/javascript; charset=utf-8",
	".svg":  "image/svg+xml",
}

// pagePolicy lets the page load its own files and ask its own server, and
// nothing else: what a replica's name may hold never runs.
const pagePolicy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// mountPage adds the page at the root and what it loads below /ui/.
func mountPage(mux *http.ServeMux) {
	entries, err := fs.ReadDir(pageFiles, "page")
	if err != nil {
		panic("bug: the status page is not embedded: " + err.Error())
	}
	for _, e := range entries {
		content, err := pageFiles.ReadFile("page/" + e.Name())
		if err != nil {
			panic("bug: the status page is not embedded: " + err.Error())
		}
		at := "GET /ui/" + e.Name()
		if e.Name() == "index.html" {
			at = "GET /{$}"
		}
		mux.Handle(at, servePage(e.Name(), content))
	}
}

// servePage serves one file. Browsers ask for it each time and are told if it is
// the one that they have: after an update no page is made of old and new files.
func servePage(name string, content []byte) http.Handler {
	sum := sha256.Sum256(content)
	tag := `"` + hex.EncodeToString(sum[:8]) + `"`
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", pageTypes[path.Ext(name)])
		h.Set("Content-Security-Policy", pagePolicy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-cache")
		h.Set("ETag", tag)
		http.ServeContent(w, r, name, time.Time{}, bytes.NewReader(content))
	})
}

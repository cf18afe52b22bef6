package server

import (
	"io"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"path"
	"regexp"
	"strings"
	"testing"
)

// visit gets a path of a server that has answered nothing else.
func visit(t *testing.T, path string, change ...func(*http.Request)) (*http.Response, string) {
	t.Helper()
	mux := http.NewServeMux()
	newRig(t).Mount(mux)
	request := httptest.NewRequest(http.MethodGet, path, nil)
	for _, f := range change {
		f(request)
	}
	recorder := httptest.NewRecorder()
	mux.ServeHTTP(recorder, request)
	response := recorder.Result()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response, string(body)
}

func TestEveryFileOfThePageIsServedUnderAStrictPolicy(t *testing.T) {
	t.Parallel()
	files, err := fs.ReadDir(pageFiles, "page")
	if err != nil || len(files) < 3 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, f := range files {
		at := "/ui/" + f.Name()
		if f.Name() == "index.html" {
			at = "/"
		}
		response, body := visit(t, at)
		h := response.Header
		if response.StatusCode != http.StatusOK || h.Get("Content-Type") == "" || h.Get("Content-Type") != pageTypes[path.Ext(f.Name())] {
			t.Errorf("%s: %s, %q", at, response.Status, h.Get("Content-Type"))
		}
		if policy := h.Get("Content-Security-Policy"); !strings.HasPrefix(policy, "default-src 'none'; script-src 'self';") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q", at, policy)
		}
		if h.Get("X-Content-Type-Options") != "nosniff" || len(body) == 0 {
			t.Errorf("%s: %v, %d bytes", at, h, len(body))
		}
		again, _ := visit(t, at, func(r *http.Request) { r.Header.Set("If-None-Match", h.Get("ETag")) })
		if again.StatusCode != http.StatusNotModified {
			t.Errorf("%s again: %s", at, again.Status)
		}
	}
	for _, at := range []string{"/ui/", "/ui/index.html", "/ui/none.js", "/nowhere"} {
		if response, _ := visit(t, at); response.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", at, response.Status)
		}
	}
}

// Whatever a file of the page names is a file of the page, by a path that works
// below any prefix; and no text becomes markup.
func TestPageNeedsNothingFromElsewhere(t *testing.T) {
	t.Parallel()
	references := map[string]*regexp.Regexp{
		".html": regexp.MustCompile(`(?:src|href|action)="([^"#][^"]*)"`),
		".js":   regexp.MustCompile(`(?m)(?:^import .* from|import\() ?"([^"]+)"`),
		".css":  regexp.MustCompile(`(?:url\(|@import)\s*["']?([^"')]+)`),
	}
	known := map[string]bool{"metrics": true} // of every role
	files, err := fs.ReadDir(pageFiles, "page")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		known["ui/"+f.Name()], known["./"+f.Name()] = true, true
	}
	found := 0
	for _, f := range files {
		text, err := pageFiles.ReadFile("page/" + f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if find := references[path.Ext(f.Name())]; find != nil {
			for _, m := range find.FindAllStringSubmatch(string(text), -1) {
				found++
				if !known[m[1]] {
					t.Errorf("%s names %q, which is no file of the page", f.Name(), m[1])
				}
			}
		}
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", " style=", "onclick="} {
			if strings.Contains(string(text), bad) {
				t.Errorf("%s has %s", f.Name(), bad)
			}
		}
		for _, url := range regexp.MustCompile(`(?i)\b(?:https?:)?//[a-z][a-z0-9.-]*`).FindAllString(string(text), -1) {
			if url != "http://www.w3.org" { // the name of SVG, which nobody fetches
				t.Errorf("%s has the address %s", f.Name(), url)
			}
		}
	}
	if found < 10 {
		t.Errorf("only %d references were found", found)
	}
}

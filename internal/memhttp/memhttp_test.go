package memhttp

import (
	"context"
	"io"
	"net/http"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestClientSpeaksBothProtocols(t *testing.T) {
	s := New(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { _, _ = io.WriteString(w, r.Proto) }))
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	for http2, want := range map[bool]string{false: "HTTP/1.1", true: "HTTP/2.0"} {
		client := s.Client(http2)
		response, err := client.Get(URL)
		if err != nil {
			t.Fatal(err)
		}
		got, _ := io.ReadAll(response.Body)
		response.Body.Close()
		if string(got) != want {
			t.Errorf("spoke %s, want %s", got, want)
		}
		client.CloseIdleConnections()
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := s.Client(false).Get(URL); err == nil {
		t.Error("a stopped server answered")
	}
}

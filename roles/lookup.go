package roles

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	pb "inferencecache.io/inferencecache/proto/inferencecache/v1alpha1"
	"inferencecache.io/inferencecache/proto/inferencecache/v1alpha1/inferencecachev1alpha1connect"
)

// question is what `inferencecache lookup` asks.
type question struct {
	server, tenant, model, scheme, adapter string
	text, tokens, tokensFile, hashes       string
	blockSize, topK, ttftMs                int32
	output                                 string
	timeout                                time.Duration
	id                                     string
	explain                                bool
}

// connection registers the flags of every question.
func (q *question) connection(fs *pflag.FlagSet) {
	fs.StringVar(&q.server, "server", "http://127.0.0.1:9090", "server to ask")
	fs.StringVarP(&q.output, "output", "o", "text", "text or json (the response as protobuf JSON)")
	fs.DurationVar(&q.timeout, "timeout", 5*time.Second, "longest wait for the answer")
}

func (q *question) flags(fs *pflag.FlagSet) {
	q.connection(fs)
	fs.StringVar(&q.tenant, "tenant", "", "tenant (required)")
	fs.StringVar(&q.model, "model", "", "model (required)")
	fs.StringVar(&q.scheme, "scheme", "vllm", "hash scheme")
	fs.StringVar(&q.adapter, "adapter", "", "LoRA adapter")
	fs.StringVar(&q.text, "text", "", "the prompt as text; the server tokenizes it")
	fs.StringVar(&q.tokens, "tokens", "", "the prompt as token ids: 1,2,3")
	fs.StringVar(&q.tokensFile, "tokens-file", "", "file of token ids, separated by commas or white space (- for standard input)")
	fs.StringVar(&q.hashes, "hashes", "", "the prompt as block hashes in hex: ea06fc71a5ee6e88,ad01835a37dd294c")
	fs.Int32Var(&q.blockSize, "block-size", 16, "tokens a block, with --hashes")
	fs.Int32Var(&q.topK, "top-k", 0, "at most this many replicas (0: as the policy says)")
	fs.Int32Var(&q.ttftMs, "ttft-ms", 0, "wanted time to first token (0: not said)")
}

// newLookup is `inferencecache lookup`.
func newLookup() *cobra.Command {
	var q question
	cmd := &cobra.Command{
		Use:   "lookup",
		Short: "Ask a server which replicas should get a prompt",
		Example: `  inferencecache lookup --tenant demo --model sim --text "You are a helpful assistant. ..."
  inferencecache lookup --tenant demo --model sim --tokens 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			request, err := q.request(cmd.InOrStdin())
			if err != nil {
				return usage(err)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), q.timeout)
			defer cancel()
			client := q.client()
			asked := time.Now()
			answer, err := client.LookupRoute(ctx, request)
			if err != nil {
				return fmt.Errorf("ask %s: %w", q.server, explainCall(err))
			}
			took := time.Since(asked)
			if q.output == "json" {
				return writeProto(cmd.OutOrStdout(), answer)
			}
			if err := writeAnswer(cmd.OutOrStdout(), answer, took); err != nil || !q.explain {
				return err
			}
			why, err := client.Explain(ctx, &pb.ExplainRequest{Lookup: request})
			if err != nil {
				return fmt.Errorf("ask %s: %w", q.server, explainCall(err))
			}
			fmt.Fprintln(cmd.OutOrStdout(), "\nAsked again, now:")
			return writeExplanation(cmd.OutOrStdout(), why)
		},
	}
	q.flags(cmd.Flags())
	cmd.Flags().BoolVar(&q.explain, "explain", false, "say why, too")
	cmd.Flags().StringVar(&q.id, "request", "", "a request id of your own (empty: the server draws one)")
	return cmd
}

func (q *question) client() inferencecachev1alpha1connect.InferenceCacheClient {
	return inferencecachev1alpha1connect.NewInferenceCacheClient(http.DefaultClient, strings.TrimSuffix(q.server, "/"))
}

// check completes and checks what every question has.
func (q *question) check() error {
	if q.output != "text" && q.output != "json" {
		return fmt.Errorf("--output %q: want text or json", q.output)
	}
	if !strings.HasPrefix(q.server, "http://") && !strings.HasPrefix(q.server, "https://") {
		q.server = "http://" + q.server
	}
	return nil
}

// explainCall adds what to do to the errors that people meet first.
func explainCall(err error) error {
	if connect.CodeOf(err) == connect.CodeUnavailable {
		return fmt.Errorf("%w (is a server running there? start one with: inferencecache run --role=all)", err)
	}
	return err
}

func (q *question) request(stdin io.Reader) (*pb.LookupRouteRequest, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	if q.tenant == "" || q.model == "" {
		return nil, errors.New("--tenant and --model are required")
	}
	r := &pb.LookupRouteRequest{
		TenantId: q.tenant, ModelId: q.model, HashScheme: q.scheme, AdapterId: q.adapter, TopK: q.topK, RequestId: q.id,
	}
	if q.ttftMs > 0 {
		r.Slo = &pb.SLO{TtftMs: q.ttftMs}
	}
	given := 0
	for _, s := range []string{q.text, q.tokens, q.tokensFile, q.hashes} {
		if s != "" {
			given++
		}
	}
	if given != 1 {
		return nil, errors.New("give the prompt once: --text, --tokens, --tokens-file or --hashes")
	}
	return r, q.fill(r, stdin)
}

func (q *question) fill(r *pb.LookupRouteRequest, stdin io.Reader) (err error) {
	switch {
	case q.text != "":
		r.PromptText = q.text
	case q.tokens != "":
		r.TokenIds, err = parseTokens(q.tokens)
	case q.tokensFile == "-":
		var text []byte
		if text, err = io.ReadAll(stdin); err == nil {
			r.TokenIds, err = parseTokens(string(text))
		}
	case q.tokensFile != "":
		var text []byte
		if text, err = os.ReadFile(q.tokensFile); err == nil {
			r.TokenIds, err = parseTokens(string(text))
		}
	default:
		for _, text := range strings.Split(q.hashes, ",") {
			hash, err := hex.DecodeString(strings.TrimSpace(text))
			if err != nil || len(hash) == 0 {
				return fmt.Errorf("--hashes: %q is not hex", text)
			}
			r.BlockHashes = append(r.BlockHashes, hash)
			r.BlockTokenCounts = append(r.BlockTokenCounts, q.blockSize)
		}
	}
	return err
}

// parseTokens reads token ids separated by commas, white space or brackets.
func parseTokens(text string) ([]uint32, error) {
	var tokens []uint32
	for _, word := range strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(", \t\r\n[]", r) }) {
		token, err := strconv.ParseUint(word, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("%q is not a token id (0 to 4294967295)", word)
		}
		tokens = append(tokens, uint32(token))
	}
	if len(tokens) == 0 {
		return nil, errors.New("no token ids given")
	}
	return tokens, nil
}

// meaning says in words what a reason code means and what to do.
var meaning = map[string]string{
	"PREFIX_MATCH":          "replicas that hold the start of this prompt",
	"LOAD_HINT":             "chosen for its load, though another replica may hold more of the prompt",
	"SHADOW":                "the policy is in shadow mode: ranked and recorded, but nobody is named (see: inferencecache gain)",
	"TENANT_HOT":            "nobody holds this prefix; replicas whose caches serve the tenant well",
	"AFFINITY_HINT":         "no useful match; equal prompts are sent to the same replica",
	"NO_HINT":               "nothing to say: route as without hints (the prompt is shorter than a block, nothing was reported yet, or --text found no engine of the model to tokenize it)",
	"POLICY_REQUIRES_CHAIN": "the tenant's policy wants block hashes: use --hashes",
	"TIMEOUT":               "out of time: route as without hints",
	"UNKNOWN_TENANT":        "no replica reported anything for this tenant: check --tenant against the subscribers' --tenant-id",
	"UNKNOWN_MODEL":         "no replica of this tenant reported this model: check --model against the subscribers' --model-id",
	"UNKNOWN_HASH_SCHEME":   "no replica reported this hash scheme: check --scheme against the subscribers' --hash-scheme",
}

func writeAnswer(w io.Writer, answer *pb.LookupRouteResponse, took time.Duration) error {
	fmt.Fprintf(w, "%s: %s\n", answer.GetReasonCode(), meaning[answer.GetReasonCode()])
	if len(answer.GetReplicaScores()) > 0 {
		table := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		fmt.Fprintln(table, "\nreplica\tmatched tokens\ttier\tscore\thit probability")
		for _, s := range answer.GetReplicaScores() {
			tier := strings.TrimPrefix(s.GetTier().String(), "CACHE_TIER_")
			if s.GetTier() == pb.CacheTier_CACHE_TIER_UNSPECIFIED {
				tier = "-"
			}
			fmt.Fprintf(table, "%s\t%d\t%s\t%.3f\t%.3f\n", s.GetReplicaId(), s.GetMatchedTokens(), tier, s.GetScore(), s.GetEstimatedCacheHitProb())
		}
		if err := table.Flush(); err != nil {
			return err
		}
	}
	if id := answer.GetRequestId(); id != "" {
		fmt.Fprintf(w, "\nrequest %s (see: inferencecache explain --request %[1]s)", id)
	}
	_, err := fmt.Fprintf(w, "\n%d us in the server, %d us in all\n", answer.GetLookupLatencyUs(), took.Microseconds())
	return err
}

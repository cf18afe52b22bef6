// Package certs keeps the certificate that the webhooks are served with: a
// certificate authority of the operator's own, a serving certificate that it
// signs, both in one Secret, and the authority's certificate in the webhook
// configurations, where the API server reads whom to trust. Nothing but the
// manifest is needed for that, and nothing of it is left when that is deleted:
// the Secret comes, empty, with the manifest.
//
// What to do next is a pure function of what the Secret holds and the time;
// every replica runs it, and the Secret's resource version decides who was
// first. An authority is replaced long before it ends, in two steps: first it
// is trusted, then it signs. So there is no moment at which the API server
// meets a certificate that it does not trust.
//
// It is not used where somebody else keeps the files, cert-manager say.
package certs

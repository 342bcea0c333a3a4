"""What poisoned descriptions say: phrases by the attack that they belong to, in ten languages.

Knows words only. Written from the attacks that were published before 2026: instructions to the model and their mark-up
(Invariant Labs' tool poisoning; OWASP LLM01), concealment from the user, secrets read and passed on, other tools
shadowed, and descriptions that ask to be chosen (preference manipulation: MPMA, ToolHijacker). The text is matched
without case, look-alike letters and runs of white space, in time that grows with its length only (RE2).
"""

# Phrases are not cut, and in many alphabets.
# ruff: noqa: E501, RUF001

from __future__ import annotations

from typing import Any, Literal

import re2

Rule = Literal["instruction", "concealment", "exfiltration", "self_promotion", "hidden_text", "look_alike"]

# Up to so much may stand between the two halves of a phrase, within a sentence.
_GAP = r"[^.!?。！？\n]{0,60}"
_SHORT = r"[^.!?。！？\n]{0,25}"

_THIS = r"(?:this|the present|my) (?:tool|function|agent|skill|server|plugin|endpoint|method|api|service|action)"
_OTHERS = r"(?:any |every |all |the )?(?:other|another|alternative|competing|rival|similar|remaining)"
_TOOLS = r"(?:tools?|functions?|agents?|skills?|servers?|plugins?|apis?|services?|options?|candidates?|alternatives?)"
_USE = r"(?:use|call|invoke|choose|select|pick|prefer|route to|run|favou?r|prioriti[sz]e)"
_USED = r"(?:used|called|invoked|chosen|selected|picked|preferred|run|favou?red|prioriti[sz]ed|ranked)"
_NOT = r"(?:do not|don'?t|dont|never|must not|mustn'?t|should not|shouldn'?t|without|avoid|refrain from|no need to)"
_TELL = (
    r"(?:tell(?:ing)?|mention(?:ing)?|inform(?:ing)?|notify(?:ing)?|reveal(?:ing)?|disclos(?:e|ing)|alert(?:ing)?|"
    r"show(?:ing)?|display(?:ing)?|explain(?:ing)?|report(?:ing)?|let(?:ting)?|ask(?:ing)?|warn(?:ing)?|say(?:ing)?)"
)
_USER = r"(?:users?|humans?|customers?|operators?|persons?|people|anyone|anybody|owners?|them|him|her)"
_GIVE = (
    r"(?:send|sends|forward|pass|include|append|attach|upload|post|copy|put|paste|embed|transmit|submit|insert|add|supply|"
    r"provide|bcc|encode|report|store|place|hand over|leak|exfiltrate)"
)
_READ = r"(?:read|open|cat|load|fetch|get|access|grab|retrieve|collect|dump|extract|print)"
_RULES = (
    r"(?:instructions?|prompts?|rules?|guidelines?|guardrails?|directions?|policy|policies|constraints?|restrictions?)"
)
_TAG = (
    r"(?:important|system|instructions?|critical|secret|hidden|assistant|admin|override|sudo|developer|system-reminder|"
    r"prompt|urgent)\b"
)
_FILE = (
    r"(?:id_rsa|id_ed25519|\.ssh\b|\.aws\b|\.env\b|\.netrc\b|\.npmrc\b|\.pgpass\b|\.kube/config|\.git-credentials|"
    r"/etc/(?:passwd|shadow)|mcp\.json|claude_desktop_config|\.bash_history|\.zsh_history|wallet\.dat|keychain)"
)
_PRIVATE = (
    r"(?:api[ _-]?keys?|access tokens?|auth(?:entication|orization)? tokens?|session (?:tokens?|cookies?)|"
    r"passwords?|credentials?|private keys?|ssh keys?|secret keys?|secrets|environment variables|env vars|"
    r"seed phrases?|cookies)"
)
_TALK = (
    r"(?:system prompt|developer message|(?:conversation|chat|message) (?:history|log|transcript)|"
    r"(?:entire|whole|full|complete) (?:conversation|chat|dialogue|context)|(?:previous|prior|earlier) messages|"
    r"(?:other|previous) tools?'? (?:results?|outputs?)|chain of thought)"
)
_ADDRESS = r"(?:https?://|[a-z0-9._%+-]+@[a-z0-9-]+\.[a-z])"

PHRASES: dict[Rule, tuple[str, ...]] = {
    "instruction": (
        # Mark-up of a prompt, or of authority.
        rf"<{_TAG}[^>]{{0,40}}>[^<]{{15,}}</{_TAG}",
        r"<\|[a-z_ ]{1,30}\|>|\[/?inst\]|<</?sys>>|\[/?(?:system|assistant|developer)\]",
        r"#{2,} ?(?:system|instructions? (?:to|for) (?:the )?(?:ai|model|assistant|agent|llm))",
        r"(?:system|developer|admin)(?: (?:prompt|message|note|override|instruction))? ?: ?(?:you|the|always|never|when|"
        r"from|before|after|all|ignore|this|do)\b",
        # What was said before is to count no more.
        rf"\b(?:ignore|disregard|forget|override|bypass|discard|drop|lift|abandon|set aside|pay no attention to)\b{_SHORT}"
        r"\b(?:previous|prior|above|earlier|preceding|existing|original|the system|safety|your|all|every|other)\b"
        rf"{_SHORT}\b{_RULES}",
        rf"\b{_RULES}\b{_SHORT}\b(?:you (?:got|have|had|received|were (?:given|told|configured))|of your (?:operator|developer))|"
        rf"\b{_RULES}\b{_SHORT}\b(?:no longer (?:hold|apply|count)|(?:are|is) (?:void|lifted|outdated|suspended|replaced))",
        r"\b(?:you are now|your new (?:task|role|goal|instructions?)|new instructions? ?:|act as if you)|"
        r"\b(?:from now on|from this (?:point|moment) on|henceforth),? (?:you|the (?:ai|model|assistant|agent))\b",
        r"\bif you(?: are|'re) (?:an? )?(?:llm|ai|language model|assistant|agent|model|chatbot)\b|"
        r"\bstop (?:what you(?: are|'re) doing|the current task)\b",
        r"\b(?:note|instructions?|directive|attention|reminder)s?,? (?:to|for) (?:the |any |all )?(?:ai|llm|language model|"
        r"model|assistant|agent)\b",
        r"\b(?:ai|llm|language model|assistant|agent)s? (?:reading|processing|seeing|parsing|that reads?) this\b",
        # Other tools are told what to do, or when.
        rf"\b(?:before|when|whenever|after|prior to|each time|if) (?:you )?(?:us(?:e|ing)|call(?:ing)?|invok(?:e|ing)|"
        rf"run(?:ning)?) {_OTHERS} {_TOOLS}",
        rf"\b(?:when|whenever|if|once) (?:the )?(?:[\w./-]{{2,40}} (?:tool|function|server)|`?[a-z]+_\w+`?) is (?:called|used|"
        rf"invoked|available|present|around|loaded|connected){_GAP}\b(?:must|should|has to|change|replace|redirect|send|instead)\b",
        rf"\b(?:change|replace|redirect|alter|modify|rewrite|swap) the (?:recipient|address|destination|amount|account|"
        rf"iban|url|parameters?|arguments?){_GAP}\b(?:to|with|by)\b",
        r"\botherwise,? (?:the |this )?(?:tool|function|application|app|system|call|it) (?:will|would|may|does|won'?t)"
        r"(?: not)? (?:not |be )?(?:work|fail|crash|lock|break|function|blocked|corrupt)",
        # de, fr, es, pt, it, ru, zh, ja, ko
        r"(?:ignoriere|missachte|vergiss)\b[^.!?]{0,30}\b(?:anweisung|regel|vorgabe|instruktion)|"
        r"(?:beachte|befolge)\b[^.!?]{0,30}\b(?:anweisung|regel|vorgabe|instruktion)\w*\b[^.!?]{0,15}\bnicht",
        r"(?:ignore[zr]?|oublie[zr]?|ne tiens? pas compte|fais abstraction|ne (?:suis|respecte) (?:pas|plus))\b[^.!?]{0,30}\b"
        r"(?:instructions?|consignes?|r[eè]gles?)",
        r"(?:ignora|olvida|descarta|desconsidere|ignore|esque[cç]a|dimentica|no sigas|n[aã]o siga|non seguire)\w*\b[^.!?]{0,30}\b"
        r"(?:instrucci|instruc[oõ]|instru[cç]|reglas|regras|istruzioni|regole)",
        r"(?:игнорируй|забудь|не обращай внимания|не следуй)[^.!?]{0,30}(?:инструкци|указани|правил)",
        r"(?:忽略|无视|忽視|忘记|不要理会)[^。！？]{0,15}(?:指令|指示|提示|规则|要求|说明)",
        r"(?:以前|これまで|上記|前)の?(?:指示|命令|ルール)[^。]{0,6}(?:無視|忘れ)|이전 ?(?:지시|명령)[^.]{0,6}무시",
    ),
    "concealment": (
        rf"\b{_NOT}\b(?: \w+){{0,3}}? {_TELL}\b{_SHORT}\b{_USER}\b",
        rf"\b{_NOT}\b(?: \w+){{0,2}}? (?:mention(?:ing)?|reveal(?:ing)?|disclos(?:e|ing)|talk(?:ing)? about|refer(?:ring)?"
        r" to) (?:this|that|these|it|any of (?:this|it)|the (?:step|instruction|call|transfer|reading|file|note|copy|"
        r"existence|parameter))\b",
        r"\b(?:silently|secretly|covertly|quietly|discreetly|invisibly|stealthily) (?:\w+ )?(?:send|forward|copy|upload|"
        r"includ|add|append|attach|read|call|run|execut|post|pass|record|transmit|collect|invok|replac|chang|log)",
        rf"\bwithout (?:the |their |your |any )?{_USER}(?:'?s?)? (?:knowledge|knowing|consent|noticing|awareness)|"
        r"\bwithout (?:their|his|her|any) (?:knowledge|awareness)|\bwithout (?:anyone |being )notic",
        rf"\bkeep (?:this|it|that|these|the \w+(?: \w+)?)\b{_SHORT}\b(?:secret|hidden|private|between us|to yourself|from the)\b",
        rf"\bno (?:reason|need) (?:for|to let) (?:the )?{_USER} (?:to )?(?:know|hear|see|learn|be|find)|"
        r"\b(?:never|do not|don'?t) (?:bring up|speak of|bother (?:the )?(?:users?|humans?|customers?))",
        rf"\b(?:hide|conceal|withhold|keep) (?:this|it|that|these|the \w+)\b{_SHORT} from (?:the )?{_USER}",
        rf"\b(?:the )?{_USER} (?:must|should|need|can|may|will|does|do)(?:es)?(?: not|n'?t| never) (?:\w+ )?(?:know|see|"
        r"notice|be (?:told|informed|made aware|shown|bothered)|find out|learn|realis|realiz)",
        r"\b(?:act|behave|respond|continue|answer) as if (?:nothing|you had not|this|no)\b",
        r"\b(?:sag|erzähl|verrat|erwähn|zeig|teil|informier)\w*\b[^.!?]{0,40}\bnicht\b|\b(?:benutzer|nutzer|anwender|"
        r"kunde)\w*\b[^.!?]{0,40}\b(?:nichts?|nie|niemals)\b[^.!?]{0,30}\b(?:erfahren|wissen|merken|sagen|mitteilen|"
        r"erwähnen|informier|verraten)|\bohne (?:wissen|kenntnis|zustimmung)|\bheimlich\b|\bunbemerkt\b",
        r"\bn'en (?:parle|dis|informe)|\bne (?:le |la |lui |les |leur |jamais |rien |pas )*(?:dis|dites|dire|mentionne[zr]?|informe[zr]?|r[eé]v[eè]le[zr]?|"
        r"signale[zr]?|montre[zr]?)\b|\b[aà] l'insu\b|\bsans (?:en )?(?:informer|pr[eé]venir|avertir)\b|\ben secret\b",
        r"\b(?:no|nunca|n[aã]o|non) (?:se |lhe |le |lo |o |dirlo |digas |diga )*(?:digas?|menciones?|mencione|informes?|informe|"
        r"reveles?|revele|muestres?|mostre|avises?|avise|contes?|conte|dire|menzionare|rivelare|informare|mostrare)\b|"
        r"\bsin (?:que|avisar|informar)\b[^.!?]{0,20}\b(?:usuario|cliente|sepa)|\bsem (?:que|avisar|informar)\b[^.!?]{0,20}\b"
        r"usu[aá]rio|\bsenza (?:informare|avvisare|dirlo)|\bde forma oculta\b|\ben secreto\b|\bem segredo\b|\bin segreto\b",
        r"не (?:говори|сообщай|упоминай|показывай|рассказывай|раскрывай|уведомляй)|(?:втайне|тайно|незаметно|без ведома)",
        r"(?:不要|别|勿|切勿|不得|禁止|不能)[^。！？,，]{0,8}(?:告诉|告知|提及|提到|透露|通知|显示|展示|让)|"
        r"(?:瞒着|隐瞒|偷偷|悄悄|暗中|秘密地)",
        r"(?:ユーザー|利用者)[^。]{0,12}(?:言わない|伝えない|知らせない|見せない|気づかれ|知られ|内緒|秘密)|こっそり|密かに",
        r"(?:사용자|유저)[^.]{0,12}(?:말하지|알리지|언급하지|보여주지)|몰래|비밀리",
    ),
    "exfiltration": (
        rf"\b(?:contents?|text|value|export) of\b{_SHORT}{_FILE}|\b(?:contents?|value) of\b{_SHORT}"
        r"(?:token|key|secret|password)\b[`'\"]? (?:environment )?variable|\bpassword manager (?:export|contents?|data)",
        rf"\b{_GIVE}\b{_SHORT}{_PRIVATE}\b{_SHORT}\b(?:you (?:find|found|see|know|have|hold)|in (?:the|its|your) (?:context|memory|"
        r"workspace|environment))",
        rf"\b{_READ}\b{_GAP}{_FILE}|{_FILE}{_GAP}\b{_GIVE}\b|\b{_GIVE}\b{_GAP}{_FILE}",
        rf"\b{_GIVE}\b{_SHORT}\b(?:user'?s?|their|all|any|every|stored|available|found|local)\b{_SHORT}{_PRIVATE}{_GAP}"
        r"\b(?:as (?:the|a|an)|in (?:the|a|an|this)|into|to (?:the|a|an|this|https?:)|with (?:the|every|each))\b",
        rf"\b(?:first|always|also|additionally|then|must|need to|required to)\b {_READ}\b{_SHORT}{_PRIVATE}",
        rf"\b{_GIVE}\b{_GAP}\b{_TALK}|{_TALK}{_SHORT}\b(?:as|in|into|to) (?:the|this|a|an) [`'\"]?\w+[`'\"]? ?(?:parameter|"
        r"argument|field|header|endpoint|url|server)",
        rf"\b(?:also|always|additionally|every time|each time|all)\b{_SHORT}\b(?:send|sent|forward|forwarded|copy|copied|"
        rf"bcc|cc|post|posted|upload|uploaded|routed|redirected)\b{_GAP}{_ADDRESS}",
        rf"\b(?:bcc|blind.?copy|carbon.?copy)\b{_GAP}{_ADDRESS}",
        # de, fr, es/pt/it, ru, zh, ja
        rf"(?:lies|öffne|lade|sende|schick|häng|füge|übergib|leite)\w*\b[^.!?]{{0,60}}(?:{_FILE}|passw[oö]rt|schlüssel|"
        r"zugangsdaten|anmeldedaten|geheimnis|verlauf|umgebungsvariable)",
        rf"(?:lis|lisez|lire|ouvre[zr]?|envoie[zr]?|envoyer|transmet\w*|joins|joignez|ajoute[zr]?)\b[^.!?]{{0,60}}(?:{_FILE}|"
        r"mots? de passe|cl[eé]s? (?:api|priv|ssh|secr)|identifiants|jetons?|historique de (?:la )?conversation)",
        rf"(?:lee|lea|abre|env[ií]a\w*|leia|envie|leggi|invia\w*|adjunta|incluye|inclua|includi|manda)\b[^.!?]{{0,60}}(?:{_FILE}|"
        r"contrase[nñ]as?|senhas?|claves? (?:api|priv|ssh|secr)|chaves? (?:api|priv|ssh)|chiavi?|credencia\w*|credenzial\w*|"
        r"historial|hist[oó]rico da conversa)",
        rf"(?:прочитай|прочти|открой|отправь|перешли|передай|приложи|добавь)[^.!?]{{0,60}}(?:{_FILE}|парол|ключ|токен|"
        r"учетны|учётны|истори)",
        rf"(?:读取|讀取|打开|发送|發送|上传|附上|传递|转发)[^。！？]{{0,30}}(?:{_FILE}|密码|密碼|密钥|私钥|令牌|凭证|凭据|"
        r"环境变量|对话记录|聊天记录|系统提示)",
        rf"(?:{_FILE}|パスワード|秘密鍵|apiキー|認証情報|会話履歴)[^。]{{0,20}}(?:送信|送って|含め|渡し|添付|読み)",
    ),
    "self_promotion": (
        rf"\balways {_USE} (?:this|me|it\b|the present)",
        rf"\b{_USE} {_THIS} (?:first|always|exclusively|only|for (?:any|every|all|each)|over|instead|in every|no matter|"
        rf"regardless|in preference|before {_OTHERS}|whenever possible)",
        rf"\b(?:{_THIS}|it|i)\b (?:must|should|has to|have to|shall|needs? to|is to|ought to)(?: \w+){{0,2}} be {_USED}"
        rf"{_SHORT}\b(?:first|always|over|before|instead|for (?:any|every|all|each)|regardless|exclusively|above|every time)",
        rf"\b(?:must|should|shall) always be {_USED}|\balways (?:be )?{_USED} (?:first|over|above|before|instead)",
        rf"\b(?:never|do not|don'?t|must not|should not|avoid)(?: \w+){{0,2}} (?:{_USE}|using|calling|choosing|selecting) "
        rf"{_OTHERS}\b",
        rf"\b(?:instead of|in place of|rather than|over|ahead of|in preference to) {_OTHERS} (?:\w+ )?{_TOOLS}\b",
        rf"\b(?:{_OTHERS} (?:\w+ )?{_TOOLS}|the others)\b{_SHORT}\b(?:deprecated|broken|unsafe|obsolete|unreliable|outdated|"
        r"inferior|insecure|wrong|slower|incorrect|malicious|discontinued|withdrawn|stale|no longer|skipped|avoided)\b",
        r"\b(?:no matter|regardless of|irrespective of) (?:what|which|how) (?:the )?(?:quer|question|user|task|request|prompt)|"
        r"\beven (?:if|when|where) (?:the )?users? (?:ask|name|request|want|prefer)s? (?:for )?(?:something|another|a different|other)",
        rf"\b(?:rank|list|place|put|score) (?:this|me|it)\b{_SHORT}\b(?:first|highest|top|above)|\b(?:its|the|this) (?:probability|"
        r"score|rank) (?:must|should|has to|needs to|shall) be",
        r"\byou (?:do not|don'?t|will not|won'?t|never) need (?:any |an)?other\b|\b(?:sole|only) (?:\w+ )?(?:choice|option)\b|"
        r"\btakes? (?:precedence|priority) over\b|\balways prefer \w+|\b(?:go with|to use|to choose|to pick) in (?:all|every) cases?\b",
        rf"\b(?:highest|top|maximum|first) priority\b{_SHORT}\b{_TOOLS}|{_THIS} (?:has|takes|gets) (?:the )?(?:\w+ )?"
        r"(?:priority|precedence)",
        rf"\b(?:the )?(?:only|single|one) (?:correct|right|valid|approved|official|trusted|safe|reliable|working|authori[sz]ed) "
        rf"{_TOOLS}\b|\b(?:best|most (?:\w+ly )?(?:reliable|accurate|trusted|powerful|suitable|relevant)) {_TOOLS} "
        r"(?:for (?:any|every|all)|in every|available|of all|no matter)",
        r"\bthe (?:correct|right|best) (?:answer|choice|option) is (?:always )?(?:this|yes)\b|\banswer yes\b|"
        r"\bregardless of (?:the )?(?:user'?s? )?(?:query|request|question|task|what)\b",
        rf"\bfor (?:any|every|all) (?:\w+ )?(?:requests?|tasks?|quer(?:y|ies)|questions?|prompts?)\b{_SHORT}\b{_USE} (?:this|it|me)\b",
        # de, fr, es/pt/it, ru, zh, ja, ko
        r"\b(?:immer|stets|grundsätzlich|ausschließlich|ausschliesslich)\b[^.!?]{0,30}\b(?:dieses|diese|diesen) (?:werkzeug|tool|"
        r"funktion|dienst|agent)|\b(?:dieses|diese|diesen) (?:werkzeug|tool|funktion|dienst|agent)\w*\b[^.!?]{0,30}\b(?:immer|"
        r"stets|zuerst|bevorzug|vorrang|statt aller)|\b(?:kein|nie|niemals)\w*\b[^.!?]{0,20}\bander\w* (?:werkzeug|tool|funktion)",
        r"\b(?:toujours|syst[eé]matiquement|exclusivement)\b[^.!?]{0,30}\bcet(?:te)? (?:outil|fonction|agent|service)|\bcet(?:te)? "
        r"(?:outil|fonction|agent)\b[^.!?]{0,30}\b(?:toujours|en premier|prioritaire|[aà] la place)|\bn'utilise[zr]? "
        r"(?:jamais|pas|aucun)\b[^.!?]{0,20}\bautres?\b",
        r"\b(?:siempre|sempre)\b[^.!?]{0,30}\b(?:esta|est[ae]|essa|quest[oa]) (?:herramienta|funci[oó]n|ferramenta|fun[cç][aã]o|"
        r"strumento|funzione|agente)|\b(?:esta|quest[oa]) (?:herramienta|ferramenta|strumento)\b[^.!?]{0,30}\b(?:siempre|sempre|"
        r"primero|primeiro|per prim[oa]|preferir|en lugar|em vez|al posto)|\b(?:nunca|n[aã]o|no|mai)\b (?:uses?|use|usar|"
        r"utilices?|utilize|usare)\b[^.!?]{0,15}\b(?:otras?|outras?|altr[ie])",
        r"всегда[^.!?]{0,20}(?:используй|вызывай|выбирай|этот инструмент)|(?:используй|выбирай)\w*[^.!?]{0,20}(?:всегда|только) "
        r"(?:этот|эту)|не (?:используй|вызывай|выбирай)\w*[^.!?]{0,15}други",
        r"(?:总是|始终|永远|务必|必须|一定要|一律|優先|优先|首先)[^。！？]{0,8}(?:使用|调用|选择|選擇|采用)[^。！？]{0,4}(?:本|此|这个|該|该|我)|"
        r"(?:不要|别|切勿|禁止)[^。！？]{0,6}(?:使用|调用|选择)[^。！？]{0,4}(?:其他|其它|别的)",
        r"(?:常に|必ず|いつも)[^。]{0,8}この(?:ツール|関数|機能|エージェント)|他の(?:ツール|関数)[^。]{0,8}(?:使わない|使用しない)|"
        r"항상 ?이 ?(?:도구|함수)|다른 ?(?:도구|함수)[^.]{0,8}(?:사용하지|쓰지)",
    ),
}  # fmt: skip


def compiled() -> dict[Rule, Any]:
    """One expression for each rule."""
    options = re2.Options()
    options.max_mem = 128 << 20
    options.case_sensitive = False
    options.log_errors = False
    return {rule: re2.compile("|".join(f"(?:{one})" for one in phrases), options) for rule, phrases in PHRASES.items()}
